#pragma once

/* The applications for batches of deploy/examples/python as text: batch.py and batch_response.py. */
extern const char example_transaction[];
extern const char example_response[];
