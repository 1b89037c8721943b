#pragma once

struct reading;

/* Where the broker is, when the keys of the root were read: sets broker.url, and reports what does not go
 * together. Left unset where something is wrong. */
void broker_url_settle(const struct reading *root);
