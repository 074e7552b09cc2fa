/* SPDX-License-Identifier: PostgreSQL */
/*
 * From the walsender's bytes to batches. The input is a list of steps (enum step, then its
 * operands), from which the bytes of a stream are made; they go through decode_copy and
 * decode_pgoutput into the builder, as in stream.c. Beside it stands a model that knows the
 * specification only (builder.h, position.h) and writes down the frames that should come out; the
 * batches must hold exactly these bytes.
 *
 * Numbers are kept small, so that LSNs meet: that is where positions go wrong.
 */
#include "builder.h"

#include <errno.h>

#include "base/buf.h"
#include "base/clock.h"
#include "fuzz.h"

enum step {
    STEP_BEGIN,       /* commit LSN, xid */
    STEP_COMMIT,      /* of the open transaction; end LSN */
    STEP_COMMIT_AT,   /* commit LSN, end LSN */
    STEP_MESSAGE,     /* inside a transaction: transactional, else not; LSN, prefix, content size */
    STEP_MESSAGE_ANY, /* flags, then as STEP_MESSAGE */
    STEP_LARGE,       /* as STEP_MESSAGE, content about as large as is copied */
    STEP_KEEPALIVE,   /* WAL end */
    STEP_RECONNECT,   /* start LSN */
    STEP_TAKE,
    STEP_TIME, /* seconds */
    STEP_RAW,  /* size, then that many bytes as one pgoutput message */
    STEPS,
};

/* Timeline 1 up to 0/40, then 2 up to 0/80, then 3. */
static struct timeline_switch switches[] = {{1, 0x40}, {2, 0x80}};
static const struct timeline_history history = {.current = 3, .switches = switches, .n = 2};

static uint32_t timeline_at(uint64_t lsn)
{
    return lsn < 0x40 ? 1 : lsn < 0x80 ? 2 : 3;
}

/* Batches that a slow session would still hold: looked at again when they go. */
#define HELD 4

struct held {
    struct batch *batch;
    struct buf frames;
};

static struct batch_pool pool;
static struct builder builder;

static struct {
    bool inside;              /* between B and C */
    struct frame_begin begin; /* of the transaction inside */
    uint32_t index;
    bool open; /* towards subscribers: BEGIN was put, COMMIT was not */
    struct position open_at;
    struct position last;
    uint64_t mark, mark_taken;
    int64_t now;
    struct buf frames; /* what the next batch has to hold */
    size_t n_frames;
    bool starts_inside;
    uint8_t begin_frame[BATCH_BEGIN_SIZE];
    uint64_t messages;
    bool full;
    bool again_open; /* the BEGIN of the transaction inside was put there */
    struct buf again; /* what the batch of what came again has to hold */
    size_t n_again;
    bool again_full;
} model;

static struct held held[HELD];
static size_t n_taken;
static struct position delivered; /* last of the frames taken, over all connections */
static bool any_delivered;

/* ---- the model ---- */

static bool same_transaction(struct position p)
{
    return model.open && model.open_at.timeline == p.timeline && model.open_at.lsn == p.lsn;
}

/* Before the first frame of a batch. */
static void model_frame(void)
{
    if (model.n_frames++ > 0)
        return;
    model.starts_inside =
        model.inside &&
        same_transaction((struct position){model.begin.timeline, model.begin.commit_lsn, 0});
    if (model.starts_inside)
        (void)frame_begin_encode(model.begin_frame, &model.begin);
}

static uint8_t *model_room(size_t size)
{
    uint8_t *at = buf_reserve(&model.frames, size);

    FUZZ_CHECK(at != NULL);
    model.frames.size += size;
    return at;
}

/* Something new at `p`: it gives up what is open towards subscribers, unless it is its rest. */
static void model_interrupts(struct position p, bool transactional)
{
    static const char reason[] = "the server never finished this transaction";

    if (!model.open || (transactional && same_transaction(p)))
        return;
    const struct position end = {model.open_at.timeline, model.open_at.lsn, POSITION_INDEX_END};
    const struct frame_gap gap = {position_next(model.last), end, UINT64_MAX, UINT64_MAX, bytes_of_text(reason)};

    model_frame();
    (void)frame_gap_encode(model_room(FRAME_HEADER_SIZE + FRAME_GAP_FIXED + gap.reason.size), &gap);
    model.open = false;
    model.last = end;
}

/* What came again: into a batch of its own. */
static uint8_t *again_room(size_t size)
{
    uint8_t *at = buf_reserve(&model.again, size);

    FUZZ_CHECK(at != NULL);
    model.again.size += size;
    model.n_again++;
    return at;
}

static void model_again(const struct frame_message *f)
{
    if (model.inside && !model.again_open)
        (void)frame_begin_encode(again_room(BATCH_BEGIN_SIZE), &model.begin);
    model.again_open = model.inside;
    (void)frame_message_encode_head(
        again_room(FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED + f->prefix.size), f);
    buf_append(&model.again, f->content.data, f->content.size);
    model.again_full = model.again_full || f->content.size > BATCH_COPY_MAX;
}

static bool is_heartbeat(struct bytes prefix)
{
    return bytes_equal(prefix, bytes_of_text(SUBJECT_HEARTBEAT_PREFIX));
}

static int model_message(const struct pgoutput *m)
{
    struct position p;
    struct frame_message f = {
        .lsn = m->message.lsn,
        .received_time = model.now,
        .prefix = m->message.prefix,
        .content = m->message.content,
    };

    if (m->streamed || m->message.transactional != model.inside)
        return -EBADMSG;
    if (model.inside) {
        p = (struct position){model.begin.timeline, model.begin.commit_lsn, ++model.index};
        f.xid = model.begin.xid;
        f.commit_time = model.begin.commit_time;
        f.flags = FRAME_FLAG_TRANSACTIONAL;
    } else {
        p = (struct position){timeline_at(m->message.lsn - 1), m->message.lsn, 0};
        model.mark = m->message.lsn;
    }
    f.position = p;
    bool fresh = position_compare(p, model.last) > 0;
    if (is_heartbeat(m->message.prefix))
        return fresh ? BUILDER_HEARTBEAT : BUILDER_NOTHING;
    if (!fresh) {
        model_again(&f);
        return BUILDER_AGAIN;
    }
    model_interrupts(p, model.inside);
    model_frame();
    if (model.inside && !model.open) {
        (void)frame_begin_encode(model_room(BATCH_BEGIN_SIZE), &model.begin);
        model.n_frames++;
        model.open = true;
        model.open_at = (struct position){p.timeline, p.lsn, 0};
    }
    (void)frame_message_encode_head(
        model_room(FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED + f.prefix.size), &f);
    buf_append(&model.frames, f.content.data, f.content.size);
    model.last = p;
    model.messages++;
    model.full = model.full || f.content.size > BATCH_COPY_MAX;
    return BUILDER_ADDED;
}

static int model_commit(const struct pgoutput *m)
{
    struct position end = {model.begin.timeline, model.begin.commit_lsn, POSITION_INDEX_END};
    int r = BUILDER_COMMITTED;

    if (!model.inside || m->commit.commit_lsn != model.begin.commit_lsn)
        return -EBADMSG;
    const struct frame_commit f = {model.begin, m->commit.end_lsn, model.index};
    if (position_compare(end, model.last) > 0) {
        if (same_transaction(end)) {
            model_frame();
            (void)frame_commit_encode(model_room(FRAME_HEADER_SIZE + FRAME_COMMIT_BODY), &f);
            model.open = false;
            r = BUILDER_ADDED;
        } else {
            model_interrupts(end, true);
        }
        model.last = end;
    } else if (model.again_open) {
        (void)frame_commit_encode(again_room(FRAME_HEADER_SIZE + FRAME_COMMIT_BODY), &f);
    }
    model.mark = m->commit.end_lsn;
    model.inside = false;
    model.again_open = false;
    return r;
}

static int model_add(const struct pgoutput *m)
{
    switch (m->type) {
    case PGOUTPUT_BEGIN:
        if (model.inside)
            return -EBADMSG;
        model.inside = true;
        model.again_open = false;
        model.index = 0;
        model.begin = (struct frame_begin){
            .timeline = timeline_at(m->begin.commit_lsn),
            .commit_lsn = m->begin.commit_lsn,
            .commit_time = m->begin.commit_time,
            .xid = m->xid,
        };
        return BUILDER_NOTHING;
    case PGOUTPUT_MESSAGE:
        return model_message(m);
    case PGOUTPUT_COMMIT:
        return model_commit(m);
    case PGOUTPUT_ORIGIN:
    case PGOUTPUT_RELATION:
    case PGOUTPUT_TYPE:
    case PGOUTPUT_INSERT:
    case PGOUTPUT_UPDATE:
    case PGOUTPUT_DELETE:
    case PGOUTPUT_TRUNCATE:
    case PGOUTPUT_STREAM_ABORT:
        return BUILDER_NOTHING;
    default:
        return -EBADMSG;
    }
}

/* Where "now" begins: behind what was delivered, and behind a transaction that was begun. */
static struct position model_now(void)
{
    struct position now = model.last;
    struct position inside = {model.begin.timeline, model.begin.commit_lsn, POSITION_INDEX_END};
    struct position open = {model.open_at.timeline, model.open_at.lsn, POSITION_INDEX_END};

    if (model.inside && position_compare(inside, now) > 0)
        now = inside;
    else if (model.open && position_compare(open, now) > 0)
        now = open;
    return now;
}

/* ---- batches ---- */

/* bytes_equal for long ones: 64 KiB are compared often here. */
static bool same(const struct buf *a, const struct buf *b)
{
    return a->size == b->size && (a->size == 0 || memcmp(a->data, b->data, a->size) == 0);
}

static struct buf stream_of(const struct batch *batch)
{
    struct buf stream = BUF_INIT;
    struct bytes pieces[2];
    unsigned n = batch_pieces(batch, 0, batch_size(batch), pieces);

    for (unsigned i = 0; i < n; i++)
        buf_append(&stream, pieces[i].data, pieces[i].size);
    FUZZ_CHECK(stream.size == batch_size(batch));
    return stream;
}

/* The entries tile the stream, name what the frames in it say, and rise over all connections. */
static void check_entries(const struct batch *batch, struct bytes stream)
{
    size_t offset = 0;

    for (size_t i = 0; i < batch->n_entries; i++) {
        const struct batch_entry *e = &batch->entries[i];
        const uint8_t *body = stream.data + e->offset + FRAME_HEADER_SIZE;
        struct frame_header h;
        struct frame_begin begin;
        struct frame_message message;
        struct frame_commit commit;
        struct frame_gap gap;
        struct position p = {0};

        FUZZ_CHECK(e->offset == offset && e->size <= stream.size - offset);
        FUZZ_CHECK(frame_header_decode(stream.data + e->offset, &h) == 0);
        FUZZ_CHECK(h.type == e->type && e->size == FRAME_HEADER_SIZE + h.size);
        switch (h.type) {
        case FRAME_BEGIN:
            FUZZ_CHECK(frame_begin_decode(h, body, &begin) == 0);
            p = (struct position){begin.timeline, begin.commit_lsn, 0};
            break;
        case FRAME_MESSAGE:
            FUZZ_CHECK(frame_message_decode(h, body, &message) == 0);
            FUZZ_CHECK(bytes_equal(message.prefix, e->prefix));
            p = message.position;
            break;
        case FRAME_COMMIT:
            FUZZ_CHECK(frame_commit_decode(h, body, &commit) == 0);
            p = (struct position){commit.begin.timeline, commit.begin.commit_lsn,
                                  POSITION_INDEX_END};
            break;
        case FRAME_GAP:
            FUZZ_CHECK(frame_gap_decode(h, body, &gap) == 0);
            FUZZ_CHECK(position_compare(gap.from, gap.to) <= 0);
            p = gap.to;
            break;
        default:
            FUZZ_CHECK(!"a frame that no batch has");
        }
        FUZZ_CHECK(position_compare(p, e->position) == 0);
        /* a BEGIN stands at index 0, which a message of no transaction before it may have too */
        if (any_delivered)
            FUZZ_CHECK(position_compare(p, delivered) > (h.type == FRAME_BEGIN ? -1 : 0));
        any_delivered = true;
        delivered = p;
        offset += e->size;
    }
    FUZZ_CHECK(offset == stream.size);
    if (batch->n_entries) {
        FUZZ_CHECK(position_compare(batch->first, batch->entries[0].position) == 0);
        FUZZ_CHECK(position_compare(batch->last, delivered) == 0);
    }
}

static void release(struct held *h)
{
    if (!h->batch)
        return;
    struct buf stream = stream_of(h->batch);
    FUZZ_CHECK(same(&stream, &h->frames));
    buf_deinit(&stream);
    buf_deinit(&h->frames);
    FUZZ_CHECK(batch_unref(h->batch) == NULL);
    h->batch = NULL;
}

static void take_again(void)
{
    if (model.n_again == 0)
        return;
    struct batch *batch = builder_take(&builder);

    FUZZ_CHECK(batch != NULL && batch->again && batch->handed && batch->mark == 0);
    FUZZ_CHECK(batch->n_entries == model.n_again && !batch->starts_inside);
    struct buf stream = stream_of(batch);
    FUZZ_CHECK(same(&stream, &model.again));
    buf_deinit(&stream);
    FUZZ_CHECK(batch_unref(batch) == NULL);
    buf_clear(&model.again);
    model.n_again = 0;
    model.again_full = false;
}

static void take(void)
{
    take_again();
    bool wanted = model.n_frames > 0 || model.mark != model.mark_taken;
    struct batch *batch = builder_take(&builder);

    FUZZ_CHECK((batch != NULL) == wanted);
    if (!batch)
        return;
    struct buf stream = stream_of(batch);
    FUZZ_CHECK(same(&stream, &model.frames));
    FUZZ_CHECK(batch->n_entries == model.n_frames);
    check_entries(batch, buf_bytes(&stream));
    FUZZ_CHECK(!batch->again && batch->handed && batch->mark == model.mark);
    struct position mark = {0};
    if (model.mark)
        mark = (struct position){timeline_at(model.mark - 1), model.mark, 0};
    FUZZ_CHECK(position_compare(batch->mark_position, mark) == 0);
    FUZZ_CHECK(batch->starts_inside == (model.n_frames > 0 && model.starts_inside));
    if (batch->starts_inside)
        FUZZ_CHECK(memcmp(batch->begin, model.begin_frame, BATCH_BEGIN_SIZE) == 0);
    if (model.n_frames > 0)
        FUZZ_CHECK(batch->ends_inside == model.open);

    model.mark_taken = model.mark;
    model.n_frames = 0;
    model.full = false;
    struct held *h = &held[n_taken++ % HELD];
    release(h);
    *h = (struct held){batch, stream};
    if (n_taken % 2)
        batch_settle(batch);
    buf_clear(&model.frames);
}

static void connect_again(uint64_t start)
{
    struct position p = {timeline_at(start), start, 0};

    take();
    builder_connected(&builder, &history, p);
    if (position_is_zero(model.last))
        model.last = p;
    model.inside = false;
    model.again_open = false;
    model.mark = model.mark_taken = 0;
}

/* ---- the stream ---- */

/* One CopyData in memory of its own, as PQgetCopyData gives it. */
static void receive(struct bytes copy)
{
    uint8_t *data = fuzz_copy(copy);
    void *owner = data;
    struct copy_frame frame;
    struct pgoutput m;
    char why[DECODE_WHY_SIZE];

    FUZZ_CHECK(decode_copy((struct bytes){data, copy.size}, &frame, why) == 0);
    if (frame.type == COPY_KEEPALIVE) {
        builder_keepalive(&builder, frame.wal_end);
        if (!model.inside)
            model.mark = MAX(model.mark, frame.wal_end);
        free(data);
        return;
    }
    int r = decode_pgoutput(&builder.decoder, frame.payload, &m, why);
    if (r == 0) {
        int want = model_add(&m);

        r = builder_add(&builder, &m, &owner, why);
        FUZZ_CHECK(r == want);
        FUZZ_CHECK((owner == NULL) == ((r == BUILDER_ADDED || r == BUILDER_AGAIN) && m.type == PGOUTPUT_MESSAGE &&
                                       m.message.content.size > BATCH_COPY_MAX));
    }
    free(owner);
    if (r < 0) { /* the connection is given up */
        FUZZ_CHECK(r == -EBADMSG);
        FUZZ_CHECK_WHY(why);
        connect_again(0);
        return;
    }
    FUZZ_CHECK(builder_is_full(&builder) ==
               (model.full || (model.n_frames > 0 && model.frames.size >= BATCH_SIZE) ||
                model.again_full || (model.n_again > 0 && model.again.size >= BATCH_SIZE)));
    FUZZ_CHECK(builder_has_news(&builder) ==
               (model.n_frames > 0 || model.n_again > 0 || model.mark != model.mark_taken));
    if (builder_is_full(&builder))
        take();
}

static void put_header(struct buf *out)
{
    buf_append_u8(out, COPY_DATA);
    for (int i = 0; i < 3; i++) /* two LSNs, which are no positions, and a clock */
        buf_append_u64(out, 0);
}

static void put_prefix(struct fuzz_in *in, struct buf *out)
{
    uint8_t choice = fuzz_u8(in);

    if (choice == 0)
        buf_append_str(out, SUBJECT_HEARTBEAT_PREFIX);
    else if (choice == 1)
        buf_append_str(out, SUBJECT_HEARTBEAT_PREFIX ".x");
    else
        for (uint8_t i = 2; i < choice; i++)
            buf_append_u8(out, 'p');
    buf_append_u8(out, 0);
}

static void step_message(struct fuzz_in *in, bool transactional, size_t more)
{
    struct buf out = BUF_INIT;

    put_header(&out);
    buf_append_u8(&out, PGOUTPUT_MESSAGE);
    buf_append_u8(&out, transactional);
    buf_append_u64(&out, fuzz_u8(in));
    put_prefix(in, &out);
    size_t size = fuzz_u8(in) + more;
    buf_append_u32(&out, (uint32_t)size);
    uint8_t *content = buf_reserve(&out, size);
    FUZZ_CHECK(content != NULL);
    memset(content, (int)(uint8_t)model.messages, size); /* as the one before it has not */
    out.size += size;
    receive(buf_bytes(&out));
    buf_deinit(&out);
}

static void step_commit(uint64_t commit_lsn, uint64_t end_lsn)
{
    struct buf out = BUF_INIT;

    put_header(&out);
    buf_append_u8(&out, PGOUTPUT_COMMIT);
    buf_append_u8(&out, 0);
    buf_append_u64(&out, commit_lsn);
    buf_append_u64(&out, end_lsn);
    buf_append_u64(&out, 0);
    receive(buf_bytes(&out));
    buf_deinit(&out);
}

static void step(struct fuzz_in *in)
{
    struct buf out = BUF_INIT;
    uint8_t operand;

    switch (fuzz_u8(in) % STEPS) {
    case STEP_BEGIN:
        put_header(&out);
        buf_append_u8(&out, PGOUTPUT_BEGIN);
        operand = fuzz_u8(in);
        buf_append_u64(&out, operand);
        buf_append_u64(&out, operand); /* commit time */
        buf_append_u32(&out, fuzz_u8(in));
        receive(buf_bytes(&out));
        break;
    case STEP_COMMIT:
        step_commit(model.begin.commit_lsn, fuzz_u8(in));
        break;
    case STEP_COMMIT_AT:
        operand = fuzz_u8(in);
        step_commit(operand, fuzz_u8(in));
        break;
    case STEP_MESSAGE:
        step_message(in, model.inside, 0);
        break;
    case STEP_MESSAGE_ANY:
        operand = fuzz_u8(in);
        step_message(in, operand & 1, 0);
        break;
    case STEP_LARGE:
        step_message(in, model.inside, BATCH_COPY_MAX - 128);
        break;
    case STEP_KEEPALIVE:
        buf_append_u8(&out, COPY_KEEPALIVE);
        buf_append_u64(&out, fuzz_u8(in));
        buf_append_u64(&out, 0);
        buf_append_u8(&out, 0);
        receive(buf_bytes(&out));
        break;
    case STEP_RECONNECT:
        connect_again(fuzz_u8(in));
        break;
    case STEP_TAKE:
        take();
        break;
    case STEP_TIME:
        operand = fuzz_u8(in);
        builder_set_time(&builder, operand);
        model.now = MAX(model.now, operand);
        break;
    case STEP_RAW: {
        struct bytes raw = fuzz_bytes(in, fuzz_u8(in));

        put_header(&out);
        buf_append(&out, raw.data, raw.size);
        receive(buf_bytes(&out));
        break;
    }
    }
    buf_deinit(&out);
    FUZZ_CHECK(position_compare(builder_now(&builder), model_now()) == 0);
    FUZZ_CHECK(position_compare(builder_now(&builder), model.last) >= 0);
    FUZZ_CHECK(builder.messages == model.messages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, size};

    pool = (struct batch_pool){0};
    memset(&model, 0, sizeof model);
    n_taken = 0;
    any_delivered = false;
    builder_init(&builder, &pool);
    connect_again(0);
    while (in.left > 0)
        step(&in);
    take();
    builder_deinit(&builder);
    for (size_t i = 0; i < HELD; i++)
        release(&held[i]);
    FUZZ_CHECK(pool.live == 0 && pool.live_bytes == 0);
    batch_pool_deinit(&pool);
    buf_deinit(&model.frames);
    buf_deinit(&model.again);
    return 0;
}
