/* Retry-After (RFC 9110, 10.2.3). Pure; any thread.
 *
 * The date forms are read by a pattern, a letter an element, and strictly: a date that is nearly right is
 * more likely another time zone than a wish to wait. */

#include "onceward/core/outcome.h"

#include <string.h>

struct cursor {
    const char *at, *end;
};

struct date {
    int year, month, day, hour, minute, second; /* month 1 to 12 */
};

static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};

/* n digits; blank: the first may be a space instead. */
static bool read_digits(struct cursor *c, int n, bool blank, int *value)
{
    int sum = 0;

    if (c->end - c->at < n)
        return false;
    for (int i = 0; i < n; i++, c->at++) {
        if (blank && i == 0 && *c->at == ' ')
            continue;
        if (*c->at < '0' || *c->at > '9')
            return false;
        sum = sum * 10 + (*c->at - '0');
    }
    *value = sum;
    return true;
}

/* One of the words, by its first len letters (0: by all of them). Answers its place, or -1. */
static int read_word(struct cursor *c, const char *const words[], int n_words, size_t len)
{
    for (int i = 0; i < n_words; i++) {
        size_t n = len ? len : strlen(words[i]);

        if ((size_t)(c->end - c->at) >= n && memcmp(c->at, words[i], n) == 0) {
            c->at += n;
            return i;
        }
    }
    return -1;
}

/* The pattern: w short day name, W long day name, d day of two digits, e the same with a blank for a zero, m
 * month, Y year, y year of two digits, h i s time; anything else stands for itself. The whole text must be
 * used. */
static bool read_date(const char *pattern, const char *text, size_t len, struct date *d)
{
    struct cursor c = {text, text + len};
    bool ok = true;

    for (const char *p = pattern; ok && *p; p++) {
        switch (*p) {
        case 'w':
        case 'W':
            ok = read_word(&c, days, 7, *p == 'w' ? 3 : 0) >= 0;
            break;
        case 'm':
            d->month = read_word(&c, months, 12, 3) + 1;
            ok = d->month > 0;
            break;
        case 'd':
        case 'e':
            ok = read_digits(&c, 2, *p == 'e', &d->day);
            break;
        case 'Y':
            ok = read_digits(&c, 4, false, &d->year);
            break;
        case 'y':
            ok = read_digits(&c, 2, false, &d->year);
            break;
        case 'h':
            ok = read_digits(&c, 2, false, &d->hour);
            break;
        case 'i':
            ok = read_digits(&c, 2, false, &d->minute);
            break;
        case 's':
            ok = read_digits(&c, 2, false, &d->second);
            break;
        default:
            ok = c.at < c.end && *c.at++ == *p;
        }
    }
    return ok && c.at == c.end;
}

/* Days since 1970-01-01 in the Gregorian calendar. Counts years from March, so that the leap day is the last.
 */
static int64_t days_since_1970(int year, int month, int day)
{
    int64_t y = month <= 2 ? year - 1 : year;
    int64_t m = (month + 9) % 12; /* March is 0 */

    return 365 * y + y / 4 - y / 100 + y / 400 + (m * 306 + 5) / 10 + day - 1 - 719468;
}

static int64_t seconds_since_1970(const struct date *d)
{
    return days_since_1970(d->year, d->month, d->day) * 86400 + d->hour * 3600 + d->minute * 60 + d->second;
}

static bool date_exists(const struct date *d)
{
    int next_year = d->month == 12 ? d->year + 1 : d->year;
    int64_t length = days_since_1970(next_year, d->month % 12 + 1, 1) - days_since_1970(d->year, d->month, 1);

    return d->year >= 1 && d->day >= 1 && d->day <= length && d->hour < 24 && d->minute < 60 &&
           d->second <= 60;
}

static bool read_any_date(const char *text, size_t len, int64_t now_s, struct date *d)
{
    if (read_date("w, d m Y h:i:s GMT", text, len, d) || read_date("w m e h:i:s Y", text, len, d))
        return date_exists(d);
    if (!read_date("W, d-m-y h:i:s GMT", text, len, d))
        return false;
    /* The year that ends in these digits and is at most 50 years ahead (RFC 9110, 5.6.7): the largest such.
     */
    int64_t limit_s = now_s + INT64_C(50) * 31556952; /* seconds of a mean Gregorian year */

    d->year += 2400;
    while (d->year >= 100 && seconds_since_1970(d) > limit_s)
        d->year -= 100;
    return date_exists(d);
}

static int64_t read_seconds(const char *text, size_t len, int64_t cap_ms)
{
    int64_t sum = 0;

    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        if (__builtin_mul_overflow(sum, 10, &sum) || __builtin_add_overflow(sum, text[i] - '0', &sum))
            sum = INT64_MAX / 1000; /* goes on: the rest must be digits too */
        if (sum > INT64_MAX / 1000)
            sum = INT64_MAX / 1000;
    }
    return sum * 1000 < cap_ms ? sum * 1000 : cap_ms;
}

int64_t retry_after_ms(const char *text, size_t len, int64_t now_wall_ms, int64_t cap_ms)
{
    struct date d = {0};

    while (len && (*text == ' ' || *text == '\t'))
        text++, len--;
    while (len && (text[len - 1] == ' ' || text[len - 1] == '\t'))
        len--;
    if (!len)
        return -1;
    if (*text >= '0' && *text <= '9')
        return read_seconds(text, len, cap_ms);
    if (!read_any_date(text, len, now_wall_ms / 1000, &d))
        return -1;
    int64_t wait_ms = seconds_since_1970(&d) * 1000 - now_wall_ms;

    return wait_ms < 0 ? 0 : wait_ms < cap_ms ? wait_ms : cap_ms;
}
