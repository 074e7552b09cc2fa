/* SPDX-License-Identifier: PostgreSQL */
#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#define US_PER_S INT64_C(1000000)

/* The first and the last µs that four digits of a year can show. */
#define FORMAT_MIN_US (INT64_C(-62167219200) * US_PER_S)
#define FORMAT_MAX_US (INT64_C(253402300800) * US_PER_S - 1)

uint64_t clock_monotonic_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int clock_ms_until(uint64_t deadline_ns)
{
    uint64_t now = clock_monotonic_ns();

    if (now >= deadline_ns)
        return 0;
    uint64_t ms = (deadline_ns - now - 1) / 1000000 + 1;
    return (int)MIN(ms, (uint64_t)INT_MAX);
}

int64_t clock_realtime_us(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * US_PER_S + ts.tv_nsec / 1000;
}

static void put_digits(char *out, size_t n, int value)
{
    for (; n > 0; value /= 10)
        out[--n] = (char)('0' + value % 10);
}

char *clock_format_rfc3339(int64_t unix_us, char out[CLOCK_TEXT_SIZE])
{
    if (unix_us < FORMAT_MIN_US)
        unix_us = FORMAT_MIN_US;
    if (unix_us > FORMAT_MAX_US)
        unix_us = FORMAT_MAX_US;

    int64_t us = unix_us % US_PER_S;
    time_t s = (time_t)(unix_us / US_PER_S);
    if (us < 0) {
        us += US_PER_S;
        s--;
    }

    struct tm tm;
    (void)gmtime_r(&s, &tm);
    /* By hand: every event that is made or printed has one, and printf would be a seventh of making it. */
    memcpy(out, "0000-00-00T00:00:00.000000Z", CLOCK_TEXT_SIZE);
    put_digits(out, 4, tm.tm_year + 1900);
    put_digits(out + 5, 2, tm.tm_mon + 1);
    put_digits(out + 8, 2, tm.tm_mday);
    put_digits(out + 11, 2, tm.tm_hour);
    put_digits(out + 14, 2, tm.tm_min);
    put_digits(out + 17, 2, tm.tm_sec);
    put_digits(out + 20, 6, (int)us);
    return out;
}

/* Exactly `digits` decimal digits at *at, which moves behind them. */
static bool take_number(const char **at, int digits, int *ret)
{
    int v = 0;

    for (int i = 0; i < digits; i++) {
        char c = **at;
        if (c < '0' || c > '9')
            return false;
        v = v * 10 + (c - '0');
        (*at)++;
    }
    *ret = v;
    return true;
}

static bool take_char(const char **at, const char *any_of)
{
    if (**at == '\0' || !strchr(any_of, **at))
        return false;
    (*at)++;
    return true;
}

static int days_in_month(int year, int month)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

    return days[month - 1] + (month == 2 && leap);
}

int clock_parse_rfc3339(const char *text, int64_t *ret_us)
{
    const char *at = text;
    int year, month, day, hour, minute, second;

    if (!take_number(&at, 4, &year) || !take_char(&at, "-") || !take_number(&at, 2, &month) ||
        !take_char(&at, "-") || !take_number(&at, 2, &day) || !take_char(&at, "Tt ") ||
        !take_number(&at, 2, &hour) || !take_char(&at, ":") || !take_number(&at, 2, &minute) ||
        !take_char(&at, ":") || !take_number(&at, 2, &second))
        return -EINVAL;
    /* 60 is a leap second, which has no place of its own in Unix time: it is the second behind. */
    if (month < 1 || month > 12 || day < 1 || day > days_in_month(year, month) || hour > 23 ||
        minute > 59 || second > 60)
        return -EINVAL;

    int64_t us = 0;
    if (take_char(&at, ".")) {
        int64_t weight = US_PER_S / 10;

        if (*at < '0' || *at > '9')
            return -EINVAL;
        for (; *at >= '0' && *at <= '9'; at++) {
            us += (*at - '0') * weight;
            weight /= 10;
        }
    }

    int offset_s = 0;
    if (!take_char(&at, "Zz")) {
        int sign = *at == '-' ? -1 : 1, zone_hour, zone_minute;

        if (!take_char(&at, "+-") || !take_number(&at, 2, &zone_hour) || !take_char(&at, ":") ||
            !take_number(&at, 2, &zone_minute) || zone_hour > 23 || zone_minute > 59)
            return -EINVAL;
        offset_s = sign * (zone_hour * 3600 + zone_minute * 60);
    }
    if (*at != '\0')
        return -EINVAL;

    struct tm tm = {
        .tm_year = year - 1900,
        .tm_mon = month - 1,
        .tm_mday = day,
        .tm_hour = hour,
        .tm_min = minute,
        .tm_sec = second,
    };
    *ret_us = ((int64_t)timegm(&tm) - offset_s) * US_PER_S + us;
    return 0;
}
