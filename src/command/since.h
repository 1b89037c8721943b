#pragma once

/* Is the text a duration ("2h", at most ten years), or a date or time of RFC 3339? The seconds and the zone
 * (UTC) may be left out, and a blank may replace the T. 0; 1: no. */
int since_check(const char *text);
