#pragma once

/* cmocka.h needs these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#ifndef assert_int_in_range /* before 2.0 */
#define assert_int_in_range assert_in_range
#endif
