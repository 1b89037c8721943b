/* libcurl reads the dates. It is generous: a day that does not exist becomes one of the next month, and lower case is
 * accepted. So it gets only dates in GMT or in asctime's form: an almost correct date probably means another time
 * zone. */

#include "forward/retry_after.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char digits[] = "0123456789";

static bool is_date(const char *text, size_t len)
{
    if (len < 4 || *text < 'A' || *text > 'Z' || !strchr(text, ':'))
        return false;
    return strcmp(text + len - 4, " GMT") == 0 || (!strchr(text, ',') && strspn(text + len - 4, digits) == 4);
}

static int64_t seconds_ms(const char *text, int64_t cap_ms)
{
    int64_t s = strtoll(text, NULL, 10); /* on overflow the largest value */

    return s > cap_ms / 1000 ? cap_ms : s * 1000;
}

int64_t retry_after_ms(const char *text, int64_t now_wall_ms, int64_t cap_ms)
{
    size_t len = strlen(text);
    int64_t wait_ms;
    time_t at;

    if (len && strspn(text, digits) == len)
        return seconds_ms(text, cap_ms);
    if (!is_date(text, len) || (at = curl_getdate(text, NULL)) == -1)
        return -1;
    if (at > INT64_MAX / 1000)
        return cap_ms;
    wait_ms = (int64_t)at * 1000 - now_wall_ms;
    return wait_ms < 0 ? 0 : wait_ms < cap_ms ? wait_ms : cap_ms;
}
