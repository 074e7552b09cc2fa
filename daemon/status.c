/* SPDX-License-Identifier: PostgreSQL */
/* The answer to REQUEST "status": what `walbus status` shows. Keys in the order of the manual page. */
#include "router.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "admission.h"
#include "base/clock.h"
#include "base/text.h"
#include "codec/cbor.h"

static const char *state_word(const struct router *r)
{
    if (r->phase != ROUTER_RUNNING)
        return "stopping";
    if (r->source.state == SOURCE_GIVEN_UP)
        return "refused";
    if (r->retention.paused || r->journal_error || admission_stuck(r))
        return "paused";
    switch (r->source.state) {
    case SOURCE_STREAMING:
        return "streaming";
    default:
        return r->source.in_use ? "waiting" : "connecting";
    }
}

static void put_position(struct buf *out, const char *key, struct position p)
{
    char text[POSITION_TEXT_SIZE];

    cbor_put_str(out, key);
    cbor_put_str(out, position_format(p, text));
}

static void put_lsn(struct buf *out, const char *key, uint64_t lsn)
{
    char text[LSN_TEXT_SIZE];

    cbor_put_str(out, key);
    cbor_put_str(out, lsn_format(lsn, text));
}

static void put_uint(struct buf *out, const char *key, uint64_t v)
{
    cbor_put_str(out, key);
    cbor_put_uint(out, v);
}

/* Foreign bytes into a text string, which must be UTF-8: a filter or a server's words may be in any encoding. */
static void put_utf8(struct buf *text, struct bytes bytes)
{
    if (text_is_utf8(bytes))
        buf_append(text, bytes.data, bytes.size);
    else
        text_put_visible(text, bytes);
}

static void put_foreign(struct buf *out, const char *key, struct bytes bytes)
{
    struct buf utf8 = BUF_INIT;

    cbor_put_str(out, key);
    put_utf8(&utf8, bytes);
    cbor_put_text(out, buf_bytes(&utf8));
    buf_deinit(&utf8);
}

static void put_slot(struct buf *out, const struct source *s)
{
    const struct server_facts *f = &s->facts;

    cbor_put_str(out, "slot");
    cbor_put_map(out, s->has_facts ? 7 : 1);
    put_foreign(out, "name", bytes_of_text(s->slot));
    if (!s->has_facts)
        return;
    put_lsn(out, "restart_lsn", f->slot_restart_lsn);
    /* the look-up is some seconds old; what was acknowledged since is known better here */
    put_lsn(out, "confirmed_flush_lsn", MAX(f->slot_confirmed_flush_lsn, s->stream.feedback.reported));
    cbor_put_str(out, "wal_status");
    cbor_put_str(out, f->slot_wal_status);
    cbor_put_str(out, "retained_bytes");
    cbor_put_int(out, f->slot_retained_bytes);
    cbor_put_str(out, "safe_wal_size");
    if (f->slot_safe_wal_size < 0)
        cbor_put_null(out);
    else
        cbor_put_int(out, f->slot_safe_wal_size);
    put_lsn(out, "mark", s->stream.feedback.mark);
}

/* So much of a subscription is shown that the answer fits into a frame, whatever others subscribe to. */
#define FILTERS_SHOWN     4
/* … and how many alone when there are very many sessions and names. */
#define FILTERS_SHOWN_FEW 0
#define VERY_MANY         200u
#define FILTER_SHOWN_SIZE 48u

/* The beginning of a filter. What is no UTF-8 grows by its escapes, so the limit is on what is shown. */
static void put_beginning(struct buf *text, struct bytes filter)
{
    struct bytes first = {filter.data, MIN(filter.size, FILTER_SHOWN_SIZE)};
    size_t end = text->size + FILTER_SHOWN_SIZE;
    bool whole = first.size == filter.size;

    put_utf8(text, first);
    if (text->size > end) {
        while ((text->data[end] & 0xc0) == 0x80) /* not within a character */
            end--;
        text->size = end;
        whole = false;
    }
    if (!whole)
        buf_append_str(text, "...");
}

static size_t filters_shown(const struct router *r)
{
    return r->n_sessions + durables_count(r->durables) > VERY_MANY ? FILTERS_SHOWN_FEW : FILTERS_SHOWN;
}

static void put_filters(struct buf *out, const char *key, const struct filter *filters, size_t n, size_t most)
{
    struct buf text = BUF_INIT;
    size_t shown = MIN(n, most);

    cbor_put_str(out, key);
    cbor_put_array(out, shown + (shown < n));
    for (size_t i = 0; i < shown; i++) {
        buf_clear(&text);
        if (filters[i].kind != FILTER_PATTERN)
            buf_append_str(&text, filters[i].kind == FILTER_EXACT ? "exact:" : "starts-with:");
        put_beginning(&text, filters[i].text);
        cbor_put_text(out, buf_bytes(&text));
    }
    if (shown < n) {
        buf_clear(&text);
        buf_printf(&text, "and %zu more", n - shown);
        cbor_put_text(out, buf_bytes(&text));
    }
    buf_deinit(&text);
}

static void put_session(struct buf *out, const struct router *r, const struct session *s)
{
    cbor_put_map(out, s->durable ? 11 : 10);
    put_uint(out, "id", s->id);
    if (s->durable) {
        cbor_put_str(out, "name");
        cbor_put_text(out, s->durable->name);
    }
    put_uint(out, "pid", (uint64_t)s->pid);
    put_uint(out, "uid", s->uid);
    cbor_put_str(out, "state");
    cbor_put_str(out, session_state_name(s->state));
    put_filters(out, "filters", s->member.filters, s->member.n_filters, filters_shown(r));
    put_filters(out, "exclude", s->member.exclusions, s->member.n_exclusions, filters_shown(r));
    put_position(out, "position", s->told);
    cbor_put_str(out, "live");
    cbor_put_bool(out, session_is_live(s));
    put_uint(out, "queued_bytes", s->outbox.charge);
    put_uint(out, "messages", s->messages);
}

static void put_foreign_or_null(struct buf *out, const char *key, struct bytes bytes)
{
    if (bytes.size) {
        put_foreign(out, key, bytes);
        return;
    }
    cbor_put_str(out, key);
    cbor_put_null(out);
}

static void put_journal(struct buf *out, const struct router *r)
{
    struct segment_info first;

    cbor_put_str(out, "journal");
    if (journal_end(r->journal)->empty) {
        cbor_put_map(out, 2);
        put_uint(out, "bytes", 0);
        put_uint(out, "limit_bytes", r->settings->journal_size);
        return;
    }
    journal_segment_info(r->journal, 0, &first);
    cbor_put_map(out, 4);
    put_uint(out, "bytes", journal_size(r->journal));
    put_uint(out, "limit_bytes", r->settings->journal_size);
    put_position(out, "oldest", first.after);
    put_position(out, "newest", journal_end(r->journal)->last);
}

static void put_subscription(struct buf *out, const struct router *r, const struct durable *d, int64_t now)
{
    struct durable_lag lag;

    durable_lag(r->durables, d, now, &lag);
    cbor_put_map(out, 8 + (d->holder ? 1 : 0) + (d->has_maker ? 1 : 0) + (d->mark.since ? 2 : 0));
    cbor_put_str(out, "name");
    cbor_put_text(out, d->name);
    put_position(out, "position", durable_stands(r->durables, d));
    put_uint(out, "lag_messages", lag.messages);
    put_uint(out, "lag_bytes", lag.bytes);
    put_uint(out, "lag_seconds", lag.seconds);
    cbor_put_str(out, "connected");
    cbor_put_bool(out, d->holder);
    if (d->holder)
        put_uint(out, "pid", (uint64_t)d->holder_pid);
    if (d->has_maker)
        put_uint(out, "made_by_uid", d->maker);
    if (d->mark.since) {
        char since[CLOCK_TEXT_SIZE];

        cbor_put_str(out, "suspended");
        cbor_put_str(out, d->mark.why);
        cbor_put_str(out, "suspended_since");
        cbor_put_str(out, clock_format_rfc3339(d->mark.since, since));
    }
    put_filters(out, "filters", d->filters->filters, d->filters->n_filters, filters_shown(r));
    put_filters(out, "exclude", d->filters->exclusions, d->filters->n_exclusions, filters_shown(r));
}

void router_put_subscriptions(struct router *r, struct buf *out)
{
    size_t n = durables_count(r->durables);
    int64_t now = clock_realtime_us();

    cbor_put_str(out, "subscriptions");
    cbor_put_array(out, n);
    for (size_t i = 0; i < n; i++)
        put_subscription(out, r, durables_at(r->durables, i), now);
}

/* What is wrong now: with the source, or with what keeps it from reading. */
static void put_last_error(struct buf *out, const struct router *r)
{
    struct buf text = BUF_INIT;

    if (r->source.state == SOURCE_GIVEN_UP)
        buf_append(&text, r->source.last_error.data, r->source.last_error.size);
    else if (r->journal_error)
        buf_printf(&text, "the journal cannot be written: %s", strerror(r->journal_error));
    else if (admission_stuck(r))
        buf_append_str(&text, admission_stuck(r));
    else if (r->retention.paused)
        buf_printf(&text, "the journal is full, and the durable subscription %s needs its oldest messages",
                   r->retention.pinned_by ? r->retention.pinned_by : "");
    else
        buf_append(&text, r->source.last_error.data, r->source.last_error.size);
    put_foreign_or_null(out, "last_error", buf_bytes(&text));
    buf_deinit(&text);
}

static void put_policy(struct buf *out, const struct router *r)
{
    const struct checks_counts *counts = checks_counts(r->checks);
    const struct quarantine_count held = quarantine_count(r->quarantine);

    cbor_put_str(out, "signatures");
    cbor_put_map(out, VERIFY_STATUS_COUNT);
    for (unsigned i = 0; i < VERIFY_STATUS_COUNT; i++)
        put_uint(out, verify_status_text((enum verify_status)i), counts->statuses[i]);
    cbor_put_str(out, "quarantine");
    cbor_put_map(out, 5);
    put_uint(out, "entries", held.entries);
    put_uint(out, "bytes", held.bytes);
    put_uint(out, "file_bytes", held.file_bytes);
    put_uint(out, "limit_bytes", held.limit);
    put_uint(out, "withheld", counts->withheld);
}

void router_put_status(struct router *r, struct buf *out)
{
    struct source *s = &r->source;
    char system[24];
    int64_t age = heartbeat_age_ms(&s->heartbeat, clock_monotonic_ns());

    snprintf(system, sizeof system, "%" PRIu64, s->continuity.system_identifier);
    cbor_put_map(out, r->quarantine ? 19 : 17);
    cbor_put_str(out, "state");
    cbor_put_str(out, state_word(r));
    put_uint(out, "pid", (uint64_t)getpid());
    cbor_put_str(out, "version");
    cbor_put_str(out, WALBUS_VERSION);
    cbor_put_str(out, "system_identifier"); /* text: JSON readers lose digits of a 64-bit number */
    cbor_put_str(out, system);
    put_uint(out, "timeline", s->continuity.timeline);
    put_position(out, "position", r->progress);
    put_slot(out, s);
    put_journal(out, r);
    put_uint(out, "messages", r->messages);
    if (r->quarantine)
        put_policy(out, r);
    put_uint(out, "turned_away", r->listener.refused);
    put_uint(out, "refused", r->refusals.total);
    put_uint(out, "connects", s->reconnects);
    cbor_put_str(out, "heartbeat_age_ms");
    if (age < 0)
        cbor_put_null(out);
    else
        cbor_put_int(out, age);
    put_uint(out, "memory_bytes", r->pool.live_bytes + r->reads.pool.live_bytes);
    cbor_put_str(out, "sessions");
    cbor_put_array(out, r->n_sessions);
    for (const struct session *session = r->sessions; session; session = session->next)
        put_session(out, r, session);
    router_put_subscriptions(r, out);
    put_last_error(out, r);
}
