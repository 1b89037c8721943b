/* Checks --since. The database accepts much more than users mean, so this check is strict, and reports a mistake
 * before any connection is made. */
#include "command/since.h"

#include "onceward/config/config.h"

#include <stdbool.h>

#define MOST_MS (3650 * INT64_C(86400000))

/* Takes exactly n digits, with a value in the range. */
static bool number(const char **at, int n, int least, int most)
{
    int value = 0;

    for (int i = 0; i < n; i++, (*at)++) {
        if (**at < '0' || **at > '9')
            return false;
        value = value * 10 + (**at - '0');
    }
    return value >= least && value <= most;
}

static bool take(const char **at, char c)
{
    if (**at != c)
        return false;
    (*at)++;
    return true;
}

static bool date(const char **at)
{
    static const int days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const char *year = *at;

    if (!number(at, 4, 1, 9999) || !take(at, '-') || !number(at, 2, 1, 12) || !take(at, '-'))
        return false;
    int y = (year[0] - '0') * 1000 + (year[1] - '0') * 100 + (year[2] - '0') * 10 + year[3] - '0';
    int month = (year[5] - '0') * 10 + year[6] - '0';
    bool leaps = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;

    return number(at, 2, 1, month == 2 && !leaps ? 28 : days[month - 1]);
}

static bool fraction(const char **at)
{
    int n = 0;

    while (**at >= '0' && **at <= '9') {
        (*at)++;
        n++;
    }
    return n >= 1 && n <= 9;
}

/* Takes a zone. PostgreSQL accepts zones of less than 16 hours, which covers all that exist. */
static bool zone(const char **at)
{
    if (take(at, 'Z') || take(at, 'z') || !**at)
        return true;
    if (!take(at, '+') && !take(at, '-'))
        return false;
    return number(at, 2, 0, 15) && (!**at || (take(at, ':') && number(at, 2, 0, 59)));
}

static bool time_of_day(const char **at)
{
    if (!number(at, 2, 0, 23) || !take(at, ':') || !number(at, 2, 0, 59))
        return false;
    if (take(at, ':') && (!number(at, 2, 0, 60) || (take(at, '.') && !fraction(at))))
        return false;
    return zone(at);
}

int since_check(const char *text)
{
    const char *at = text;
    int64_t ms;

    if (config_duration(text, &ms) == 0)
        return ms > MOST_MS;
    if (!date(&at))
        return 1;
    if (*at && !((take(&at, 'T') || take(&at, 't') || take(&at, ' ')) && time_of_day(&at)))
        return 1;
    return *at != '\0';
}
