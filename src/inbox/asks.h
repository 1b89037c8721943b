#pragma once

struct inbox;

/* Reads the answer about the registration of the queues, if it has arrived. */
void asks_read_registration(struct inbox *i);
