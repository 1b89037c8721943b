#pragma once

/* deploy/examples/python/batch.py as text. */
extern const char example_application[];
