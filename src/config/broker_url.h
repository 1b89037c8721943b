#pragma once

struct reading;

/* Sets broker.url after the root's keys were read, and reports conflicting keys. After an error the URL stays unset. */
void broker_url_settle(const struct reading *root);
