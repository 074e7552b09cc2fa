/* SPDX-License-Identifier: PostgreSQL */
#include "tail_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "codec/control.h"
#include "codec/subject.h"
#include "codec/trust.h"

#define COMMAND TAIL_COMMAND

const struct cli_option tail_cli_options[] = {
    {"exact", "PREFIX", "Also follow the prefix that is exactly this. May be repeated."},
    {"starts-with", "PREFIX", "Also follow prefixes that begin with this. May be repeated."},
    {"exclude", "PATTERN", "Leave out prefixes that match this. May be repeated."},
    {"from", "WHERE",
     "Where to begin: now (default; with --no-follow oldest), oldest, a position, a time, or "
     "-15min."},
    {"durable", "NAME", "Follow under this name: the router keeps its place while nobody does."},
    {"take-over", NULL, "End the connection that has the durable name."},
    {"count", "N", "Acknowledge and exit 0 after N messages."},
    {"no-follow", NULL, "Exit 0 after what stood in the journal at the beginning."},
    {"timeout", "SECONDS", "Exit 1 when this passes, unless the end is reached before."},
    {"no-ack", NULL, "Do not tell the router what has been written."},
    {"trust", "FILE", "Say of each message what its signature is worth, by the keys in this file."},
    {"audience", "TEXT",
     "With --trust: for whom events must be signed, where it says nothing else (default: '')."},
    {"valid-only", NULL, "With --trust: leave out every message that has no valid signature."},
    {"output", "FORMAT", "text (default), json, cloudevents or, not to a terminal, raw."},
    {NULL, NULL, NULL},
};

static int add_filter(struct walbus_filter *list, size_t *n, enum walbus_filter_kind kind,
                      const char *text)
{
    size_t size = strlen(text);

    if (kind == WALBUS_FILTER_PATTERN && size == 0)
        return cli_usage(COMMAND, "A pattern is empty; %s. The empty prefix alone is --exact ''.",
                         cli_shell_hint);
    if (size > WALBUS_MAX_FILTER)
        return cli_usage(COMMAND, "A filter of %zu bytes is too long; at most %d are allowed.",
                         size, WALBUS_MAX_FILTER);
    if (*n == WALBUS_MAX_FILTERS)
        return cli_usage(COMMAND, "There are more than %d filters.", WALBUS_MAX_FILTERS);
    list[(*n)++] = (struct walbus_filter){kind, text, size};
    return CLI_OK;
}

int tail_options_add_pattern(struct tail_options *o, const char *text)
{
    return add_filter(o->filters, &o->n_filters, WALBUS_FILTER_PATTERN, text);
}

static int parse_count(const char *value, uint64_t *ret)
{
    char *end;

    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end || errno || n == 0)
        return cli_usage(COMMAND, "--count needs a number from 1 on, not '%s'.", value);
    *ret = n;
    return CLI_OK;
}

static int take_from(struct tail_options *o, const char *value)
{
    if (start_parse(value, clock_realtime_us(), &o->start) < 0)
        return cli_usage(COMMAND,
                         "--from is now, oldest, a position as 1:0/16B3748:1, a time with its zone "
                         "as 2026-01-15T10:30:00Z, or so long ago as -15min, not '%s'.",
                         value);
    o->from = value;
    return CLI_OK;
}

static int take_name(struct tail_options *o, const char *value)
{
    if (!control_name_is_good(bytes_of_text(value)))
        return cli_usage(COMMAND,
                         "A durable name has 1 to %d bytes, all visible, without blanks; not '%s'.",
                         CONTROL_NAME_MAX, value);
    o->name = value;
    return CLI_OK;
}

int tail_option(void *state, const struct cli_option *option, const char *value)
{
    struct tail_options *o = state;

    if (strcmp(option->name, "exact") == 0)
        return add_filter(o->filters, &o->n_filters, WALBUS_FILTER_EXACT, value);
    if (strcmp(option->name, "starts-with") == 0)
        return add_filter(o->filters, &o->n_filters, WALBUS_FILTER_STARTS_WITH, value);
    if (strcmp(option->name, "exclude") == 0)
        return add_filter(o->exclusions, &o->n_exclusions, WALBUS_FILTER_PATTERN, value);
    if (strcmp(option->name, "from") == 0)
        return take_from(o, value);
    if (strcmp(option->name, "durable") == 0)
        return take_name(o, value);
    if (strcmp(option->name, "count") == 0)
        return parse_count(value, &o->count);
    if (strcmp(option->name, "timeout") == 0)
        return cli_take_duration(COMMAND, option->name, value, &o->timeout_us);
    if (strcmp(option->name, "output") == 0)
        return print_format_parse(value, &o->format) == 0
                   ? CLI_OK
                   : cli_usage(COMMAND, "--output is text, json, cloudevents or raw, not '%s'.",
                               value);
    if (strcmp(option->name, "trust") == 0)
        o->trust = value;
    else if (strcmp(option->name, "audience") == 0)
        o->audience = value;
    else if (strcmp(option->name, "valid-only") == 0)
        o->valid_only = true;
    else if (strcmp(option->name, "take-over") == 0)
        o->take_over = true;
    else if (strcmp(option->name, "no-follow") == 0)
        o->no_follow = true;
    else
        o->no_ack = true;
    return CLI_OK;
}

int tail_options_check(struct tail_options *o)
{
    if (o->format == PRINT_RAW && isatty(STDOUT_FILENO))
        return cli_usage(COMMAND, "--output raw: a terminal would act on control characters in "
                                  "the contents; send them to a file or a pipe.");
    if (o->take_over && !o->name)
        return cli_usage(COMMAND, "--take-over is about a name: --durable NAME is missing.");
    if (!o->trust && (o->valid_only || o->audience))
        return cli_usage(COMMAND, "--%s needs the keys that are believed: --trust FILE is missing.",
                         o->valid_only ? "valid-only" : "audience");

    const char *fault = o->audience ? trust_audience_fault(bytes_of_text(o->audience)) : NULL;

    if (fault)
        return cli_usage(COMMAND, "--audience: The audience %s.", fault);
    if (!o->from && o->no_follow)
        o->start.start = WALBUS_START_OLDEST;
    return CLI_OK;
}

/* `walbus tail orders.> file` reaches us as the pattern "orders.". */
static void warn_of_pattern(const struct walbus_filter *filter, bool to_file)
{
    struct bytes token;

    if (filter->kind != WALBUS_FILTER_PATTERN)
        return;
    if (to_file && filter->text[filter->size - 1] == '.') {
        (void)cli_fail(COMMAND, "The pattern '%s' ends with an empty token; %s.", filter->text, cli_shell_hint);
        return;
    }
    const char *oddity =
        subject_pattern_oddity((struct bytes){(const uint8_t *)filter->text, filter->size}, &token);
    if (oddity)
        (void)cli_fail(COMMAND, "pattern '%s': '%.*s' %s", filter->text, (int)token.size,
                       token.size ? (const char *)token.data : "", oddity);
}

void tail_options_warn(const struct tail_options *o, bool to_file)
{
    for (size_t i = 0; i < o->n_filters; i++)
        warn_of_pattern(&o->filters[i], to_file);
    for (size_t i = 0; i < o->n_exclusions; i++)
        warn_of_pattern(&o->exclusions[i], to_file);
}

void tail_options_subscription(const struct tail_options *o,
                               struct walbus_subscription_options *ret)
{
    ret->filters = o->filters;
    ret->n_filters = o->n_filters;
    ret->exclusions = o->exclusions;
    ret->n_exclusions = o->n_exclusions;
    ret->name = o->name;
    ret->flags = (o->take_over ? WALBUS_TAKE_OVER : 0) | (o->valid_only ? WALBUS_VALID_ONLY : 0);
    ret->trust = o->trust;
    ret->audience = o->audience;
    ret->start = o->start.start;
    ret->position = o->start.position;
    ret->time_us = o->start.time_us;
}
