#pragma once

/* Is that a duration ("2h", at most ten years), or a date or time of RFC 3339? The seconds and the zone may
 * be left out (UTC), and a blank may stand for the T. 0; 1: no. */
int since_check(const char *text);
