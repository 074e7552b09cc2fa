/* SPDX-License-Identifier: PostgreSQL */
#include "fake_journal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "codec/frame.h"
#include "unit.h"

void fake_journal_init(struct journal *j)
{
    *j = (struct journal){.n_segments = 1};
    j->segments[0] = (struct segment_info){.after = {1, 0, 0}, .last = {1, 0, 0}};
    j->end = (struct journal_end){
        .system_identifier = 42, .era = 1, .database = "shop", .slot = "walbus", .last = {1, 0, 0}, .mark_timeline = 1};
}

void fake_journal_add(struct journal *j, struct position position, const char *prefix, uint64_t bytes)
{
    ck_assert_uint_lt(j->n_messages, FAKE_MESSAGES_MAX);
    ck_assert_int_gt(position_compare(position, j->end.last), 0);
    j->messages[j->n_messages] = (struct fake_message){position, prefix, bytes, (int64_t)(1000000 * (j->n_messages + 1))};
    j->end.last = position;
    j->end.messages++;
    j->end.bytes += bytes;
    j->end.received_time = j->messages[j->n_messages++].received_time;
    j->segments[j->n_segments - 1].last = position;
}

void fake_journal_cut(struct journal *j)
{
    ck_assert_uint_lt(j->n_segments, FAKE_SEGMENTS_MAX);
    j->segments[j->n_segments] = (struct segment_info){
        .sequence = j->segments[j->n_segments - 1].sequence + 1,
        .after = j->end.last,
        .last = j->end.last,
        .messages_before = j->end.messages,
        .bytes_before = j->end.bytes,
        .received_time = j->end.received_time,
        .running_ms = j->running_ms,
    };
    j->n_segments++;
}

int journal_open(const struct journal_options *options, uv_loop_t *loop, const struct journal_ops *ops, void *owner,
                 struct logger *log, struct journal **ret, char why[JOURNAL_WHY_SIZE])
{
    (void)options, (void)loop, (void)ops, (void)owner, (void)log, (void)ret, (void)why;
    ck_abort_msg("the test opens none");
}

const struct journal_end *journal_end(const struct journal *j)
{
    return &j->end;
}

int journal_begin_era(struct journal *j, uint64_t system_identifier, uint32_t era, const char *database, const char *slot,
                      struct position after, uint64_t mark, uint32_t mark_timeline)
{
    (void)j, (void)system_identifier, (void)era, (void)database, (void)slot, (void)after, (void)mark, (void)mark_timeline;
    ck_abort_msg("the test begins no era");
}

void journal_append(struct journal *j, struct batch *batch)
{
    (void)j, (void)batch;
    ck_abort_msg("the test appends nothing");
}

void journal_no_memory(struct journal *j)
{
    (void)j;
}

size_t journal_queued(const struct journal *j)
{
    (void)j;
    return 0;
}

bool journal_is_full_queue(const struct journal *j, bool half)
{
    (void)j, (void)half;
    return false;
}

size_t journal_pending(const struct journal *j)
{
    (void)j;
    return 0;
}

struct batch *journal_pending_at(const struct journal *j, size_t i)
{
    (void)j, (void)i;
    return NULL;
}

struct position journal_written(const struct journal *j)
{
    return position_is_zero(j->written) ? j->end.last : j->written;
}

void journal_retry(struct journal *j)
{
    (void)j;
}

bool journal_has_failed(const struct journal *j)
{
    return j->failed;
}

int journal_finish(struct journal *j)
{
    (void)j;
    return 0;
}

struct journal *journal_ref(struct journal *j)
{
    j->refs++;
    return j;
}

struct journal *journal_unref(struct journal *j)
{
    ck_assert_uint_gt(j->refs, 0);
    j->refs--;
    return NULL;
}

struct journal *journal_close(struct journal *j)
{
    (void)j;
    return NULL;
}

size_t journal_segments(const struct journal *j)
{
    return j->n_segments;
}

void journal_segment_info(const struct journal *j, size_t i, struct segment_info *ret)
{
    ck_assert_uint_lt(i, j->n_segments);
    *ret = j->segments[i];
}

uint64_t journal_size(const struct journal *j)
{
    return j->size;
}

void journal_tick(struct journal *j)
{
    (void)j;
}

uint64_t journal_running_ms(const struct journal *j)
{
    return j->running_ms;
}

int journal_drop_first(struct journal *j)
{
    ck_assert_uint_gt(j->n_segments, 1);
    if (j->drop_error)
        return j->drop_error;
    memmove(j->segments, j->segments + 1, --j->n_segments * sizeof *j->segments);
    return 0;
}

/* ---- reading ---- */

void journal_place_drop(struct journal_place *p)
{
    (void)p;
}

/* Everything that matches at once, as single messages: who wants transactions wants a real journal. */
void journal_read_step(struct journal_read *r)
{
    const struct journal *j = r->journal;
    struct buf data = BUF_INIT;

    r->end = READ_END;
    r->error = 0;
    r->rest = r->last = 0;
    r->owed = r->messages = 0;
    r->first = false;
    for (size_t i = 0; i < j->n_messages; i++) {
        const struct fake_message *m = &j->messages[i];
        struct frame_message f = {.position = m->position, .prefix = unit_bytes(m->prefix)};

        if (position_compare(m->position, r->told) <= 0 || position_compare(m->position, journal_written(j)) > 0)
            continue;
        if (filters_match(r->filters, r->n_filters, r->exclusions, r->n_exclusions, f.prefix)) {
            uint8_t *to = buf_reserve(&data, FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED + f.prefix.size);

            ck_assert_ptr_nonnull(to);
            r->last = data.size;
            data.size += frame_message_encode_head(to, &f);
            r->messages++;
        }
    }
    if (position_compare(r->told, journal_written(j)) < 0)
        r->told = journal_written(j);
    r->data = data.data;
    r->size = data.size;
}

void journal_read_deinit(struct journal_read *r)
{
    free(r->data);
    r->data = NULL;
}

void journal_measure(struct journal *j, struct journal_measure *m)
{
    const struct segment_info *oldest = &j->segments[0];

    (void)__atomic_add_fetch(&j->measured, 1, __ATOMIC_RELAXED);
    m->error = j->read_error;
    m->messages = oldest->messages_before;
    m->bytes = oldest->bytes_before;
    m->received_time = 0;
    for (size_t i = oldest->messages_before; i < j->n_messages; i++) {
        const struct fake_message *message = &j->messages[i];

        if (position_compare(message->position, journal_written(j)) > 0)
            break;
        if (position_compare(message->position, m->at) > 0) {
            m->received_time = message->received_time;
            break;
        }
        m->messages++;
        m->bytes += message->bytes;
    }
}

int journal_find_time(struct journal *j, int64_t time, struct position *ret)
{
    struct position before = j->segments[0].after;

    j->asked_time = time;
    if (j->read_error)
        return j->read_error;
    for (size_t i = j->segments[0].messages_before; i < j->n_messages; i++) {
        if (j->messages[i].received_time >= time)
            break;
        before = j->messages[i].position;
    }
    *ret = before;
    return 0;
}

void journal_probe_first(struct journal *j, struct journal_probe *probes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct journal_probe *p = &probes[i];

        p->error = j->read_error;
        p->matches = false;
        p->messages = p->bytes = 0;
        for (size_t k = j->segments[0].messages_before; k < j->n_messages; k++) {
            const struct fake_message *m = &j->messages[k];
            struct bytes prefix = unit_bytes(m->prefix);

            if (position_compare(m->position, p->after) <= 0 || position_compare(m->position, j->segments[0].last) > 0)
                continue;
            p->messages++;
            p->bytes += m->bytes;
            p->matches |= filters_match(p->filters, p->n_filters, p->exclusions, p->n_exclusions, prefix);
        }
    }
}
