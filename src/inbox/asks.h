#pragma once

struct inbox;

/* Takes what was answered about the registration of the queues, if anything was. */
void asks_read_registration(struct inbox *i);
