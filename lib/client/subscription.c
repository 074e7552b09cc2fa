/* SPDX-License-Identifier: PostgreSQL */
#include "client/subscription.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/text.h"
#include "client/known_struct.h"
#include "client/position.h"

/* Delays between connects: the n-th is drawn from the upper half of 0 to FIRST * 2^n, at most MAX.
 * So a thousand subscribers of a restarted router do not come back in one instant. */
#define BACKOFF_FIRST_MS 100u
#define BACKOFF_MAX_MS   2000u

#define KNOWN_FLAGS \
    (WALBUS_WAIT_FOR_ROUTER | WALBUS_TAKE_OVER | WALBUS_OVERRIDE | WALBUS_KEEPS_POSITION | \
     WALBUS_VALID_ONLY)

/** Receives per call of process: bounds the time spent on one large frame that keeps coming. */
#define FILLS_PER_PROCESS 16

/** Messages withheld per call of process: verifying one takes some 50 µs, and whoever can emit can emit any number of
 *  them. */
#define WITHHELD_PER_PROCESS 64

_Static_assert((int)WALBUS_FILTER_PATTERN == (int)FILTER_PATTERN &&
                   (int)WALBUS_FILTER_EXACT == (int)FILTER_EXACT &&
                   (int)WALBUS_FILTER_STARTS_WITH == (int)FILTER_STARTS_WITH,
               "the kinds are the protocol's");
_Static_assert(WALBUS_MAX_FILTER == FILTER_TEXT_MAX && WALBUS_MAX_FILTERS == FILTERS_MAX &&
                   WALBUS_MAX_TOKENS == FILTERS_TOKENS_MAX,
               "the limits are the router's");
_Static_assert(WALBUS_MAX_NAME == CONTROL_NAME_MAX, "and so is this one");
_Static_assert(WALBUS_MAX_AUDIENCE == TRUST_AUDIENCE_MAX, "a trust file takes as much");

/* ---- results ---- */

/** What every call that is not const begins with. */
static void forget_error(struct walbus_subscription *s)
{
    s->error = s->error_code = "";
}

/** What every such call ends with: whatever failed has a sentence. */
static enum walbus_result note(struct walbus_subscription *s, enum walbus_result result)
{
    if (result != WALBUS_OK && !*s->error)
        s->error = walbus_result_text(result);
    return result;
}

const char *walbus_subscription_error(const struct walbus_subscription *s)
{
    return s ? s->error : "";
}

const char *walbus_subscription_error_code(const struct walbus_subscription *s)
{
    return s ? s->error_code : "";
}

void subscription_log(struct walbus_subscription *s, const char *fmt, ...)
{
    /* one of the router's or about the trust file, and what stands around it */
    char sentence[MAX(SUBSCRIPTION_WHY_SIZE, TRUST_FILE_WHY_SIZE) + 64];
    va_list ap;

    if (!s->log)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(sentence, sizeof sentence, fmt, ap);
    va_end(ap);
    s->log(s->context, sentence);
}

/* ---- options ---- */

static bool filters_are_given(const struct walbus_filter *filters, size_t n)
{
    if (!filters && n > 0)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!filters[i].text && filters[i].size > 0)
            return false;
    return true;
}

static bool start_is_good(const struct walbus_subscription_options *o)
{
    switch (o->start) {
    case WALBUS_START_NOW:
    case WALBUS_START_OLDEST:
    case WALBUS_START_TIME:
        return true;
    case WALBUS_START_POSITION:
        return !position_is_zero(position_given(o->position));
    case WALBUS_START_STORED:
        return o->name && !(o->flags & WALBUS_OVERRIDE);
    }
    return false;
}

static bool name_is_good(const struct walbus_subscription_options *o)
{
    if (!o->name)
        return !(o->flags & (WALBUS_TAKE_OVER | WALBUS_OVERRIDE | WALBUS_KEEPS_POSITION));
    return control_name_is_good(bytes_of_text(o->name));
}

static bool options_are_good(const struct walbus_subscription_options *o)
{
    if (!struct_is_known(o, o->size, sizeof *o) || (o->flags & ~KNOWN_FLAGS) || !start_is_good(o) ||
        !name_is_good(o))
        return false;
    struct bytes client = bytes_of_text(o->client), identity = bytes_of_text(o->identity);
    return client.size <= WALBUS_MAX_CLIENT && text_is_utf8(client) &&
           identity.size < IDENTITY_TEXT_SIZE && text_is_utf8(identity) &&
           !trust_audience_fault(bytes_of_text(o->audience)) &&
           (o->trust || !(o->flags & WALBUS_VALID_ONLY)) &&
           filters_are_given(o->filters, o->n_filters) &&
           filters_are_given(o->exclusions, o->n_exclusions);
}

static bool filter_is_good(const struct walbus_filter *f)
{
    return (unsigned)f->kind <= WALBUS_FILTER_STARTS_WITH && f->size <= FILTER_TEXT_MAX &&
           !(f->size == 0 && f->kind == WALBUS_FILTER_PATTERN) &&
           !(f->size > 0 && memchr(f->text, '\0', f->size));
}

static bool filters_are_good(const struct walbus_filter *filters, size_t n)
{
    if (n > FILTERS_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!filter_is_good(&filters[i]))
            return false;
    return true;
}

/** One list; NULL: no memory. */
static struct filter *copy_list(const struct walbus_filter *filters, size_t n)
{
    struct filter *borrowed = malloc(n * sizeof *borrowed + 1), *copy = NULL;

    for (size_t i = 0; borrowed && i < n; i++)
        borrowed[i] = (struct filter){(enum filter_kind)filters[i].kind,
                                      {(const uint8_t *)filters[i].text, filters[i].size}};
    if (borrowed)
        copy = filters_copy(borrowed, n);
    free(borrowed);
    return copy;
}

/** Both lists, with no filters becoming one of everything. */
static int copy_filters(struct walbus_subscription *s, const struct walbus_subscription_options *o)
{
    static const struct walbus_filter everything = {WALBUS_FILTER_PATTERN, ">", 1};

    s->n_filters = MAX(o->n_filters, (size_t)1);
    s->filters = copy_list(o->n_filters > 0 ? o->filters : &everything, s->n_filters);
    s->n_exclusions = o->n_exclusions;
    s->exclusions = copy_list(o->exclusions, o->n_exclusions);
    return s->filters && s->exclusions ? 0 : -ENOMEM;
}

/** Limits on all filters together: of tokens, and that SUBSCRIBE, the longer form of it, fits into a frame. */
static enum walbus_result check_filters_together(const struct walbus_subscription *s)
{
    size_t tokens = 0;

    for (size_t i = 0; i < s->n_filters; i++)
        tokens += filter_tokens(&s->filters[i]);
    for (size_t i = 0; i < s->n_exclusions; i++)
        tokens += filter_tokens(&s->exclusions[i]);
    if (tokens > FILTERS_TOKENS_MAX)
        return WALBUS_BAD_FILTER;
    struct buf frame = BUF_INIT;
    subscription_put_subscribe(s, (struct subscription_start){CONTROL_START_POSITION, true},
                               &frame);
    bool failed = frame.failed, fits = frame.size <= FRAME_HEADER_SIZE + FRAME_CONTROL_MAX;
    buf_deinit(&frame);
    return failed ? WALBUS_NO_MEMORY : fits ? WALBUS_OK : WALBUS_BAD_FILTER;
}

/** Refuses what can never be a socket. None at the usual places is a router that does not run. */
static enum walbus_result check_place(const struct walbus_subscription *s)
{
    char why[SOCKET_PLACE_WHY_SIZE], *path = NULL;
    int rc = connection_place(s->socket, &path, why);

    free(path);
    return rc == -ENOMEM ? WALBUS_NO_MEMORY : rc == -EINVAL ? WALBUS_BAD_SOCKET : WALBUS_OK;
}

static void take_start(struct walbus_subscription *s, const struct walbus_subscription_options *o)
{
    static const enum control_start starts[] = {
        [WALBUS_START_NOW] = CONTROL_START_NOW,
        [WALBUS_START_POSITION] = CONTROL_START_POSITION,
        [WALBUS_START_OLDEST] = CONTROL_START_OLDEST,
        [WALBUS_START_TIME] = CONTROL_START_TIME,
        [WALBUS_START_STORED] = CONTROL_START_STORED,
    };

    s->keeps_position = o->flags & WALBUS_KEEPS_POSITION;
    s->take_over = o->flags & WALBUS_TAKE_OVER;
    s->start = (struct subscription_start){starts[o->start], o->flags & WALBUS_OVERRIDE};
    s->time = o->time_us;
    if (o->start == WALBUS_START_POSITION) {
        sequence_start(&s->sequence, position_given(o->position));
        (void)snprintf(s->identity, sizeof s->identity, "%s", o->identity ? o->identity : "");
        s->knows_identity = *s->identity;
    }
}

static enum walbus_result take_options(struct walbus_subscription *s,
                                       const struct walbus_subscription_options *o)
{
    s->client = strdup(o->client ? o->client : "");
    s->socket = o->socket ? strdup(o->socket) : NULL;
    s->name = o->name ? strdup(o->name) : NULL;
    if (!s->client || (o->socket && !s->socket) || (o->name && !s->name) || copy_filters(s, o) < 0)
        return WALBUS_NO_MEMORY;
    enum walbus_result result = check_filters_together(s);
    if (result != WALBUS_OK)
        return result;
    result = check_place(s);
    if (result == WALBUS_OK)
        result = subscription_take_trust(s, o);
    if (result != WALBUS_OK)
        return result;
    take_start(s, o);
    s->log = o->log;
    s->context = o->context;
    return WALBUS_OK;
}

/* ---- the connection's life ---- */

static uint32_t random_below(uint32_t bound)
{
    uint32_t r;

    if (getrandom(&r, sizeof r, GRND_NONBLOCK) != (ssize_t)sizeof r)
        r = (uint32_t)clock_monotonic_ns(); /* early at boot; only jitter hangs on it */
    return r % bound;
}

void subscription_reconnect(struct walbus_subscription *s)
{
    unsigned limit = BACKOFF_MAX_MS;
    uint64_t now = clock_monotonic_ns();

    /* What did not leave goes out on the next connection, and what was to be confirmed once more. */
    s->ack_queued |= s->ack_sending || s->confirming;
    s->ack_confirm = s->confirming;
    s->ack_sending = false;
    connection_close(&s->connection);
    s->stopping = s->stopping_seen = false;

    /* A connection that lasted shows that nothing is wrong with connecting. */
    if (s->state == STATE_READY && now - s->ready_ns >= BACKOFF_MAX_MS * UINT64_C(1000000))
        s->attempts = 0;
    if (s->attempts < 5)
        limit = MIN(BACKOFF_FIRST_MS << s->attempts, BACKOFF_MAX_MS);
    s->attempts++;
    s->wake_ns = now + (limit / 2 + random_below(limit / 2 + 1)) * UINT64_C(1000000);
    s->state = STATE_WAITING;
}

static int try_connect(struct walbus_subscription *s)
{
    char why[SOCKET_PLACE_WHY_SIZE], *path = NULL;
    int rc = connection_place(s->socket, &path, why);

    if (rc == 0)
        rc = connection_open(&s->connection, path, s->client);
    free(path);
    if (rc < 0)
        subscription_reconnect(s);
    else
        s->state = STATE_GREETING;
    return rc;
}

enum walbus_result walbus_subscription_open(const struct walbus_subscription_options *options,
                                            struct walbus_subscription **ret)
{
    if (!options || !ret || !options_are_good(options))
        return WALBUS_BAD_ARGUMENT;
    if (!filters_are_good(options->filters, options->n_filters) ||
        !filters_are_good(options->exclusions, options->n_exclusions))
        return WALBUS_BAD_FILTER;

    struct walbus_subscription *s = calloc(1, sizeof *s);
    if (!s)
        return WALBUS_NO_MEMORY;
    s->connection = CONNECTION_INIT;
    forget_error(s);
    s->waits = options->flags & WALBUS_WAIT_FOR_ROUTER;
    enum walbus_result result = take_options(s, options);
    int rc = result == WALBUS_OK ? try_connect(s) : 0;
    if (rc == -ENOMEM)
        result = WALBUS_NO_MEMORY;
    else if (rc < 0 && rc != -EAGAIN && !(options->flags & WALBUS_WAIT_FOR_ROUTER))
        result = WALBUS_NO_ROUTER;
    if (result != WALBUS_OK) {
        (void)walbus_subscription_close(s);
        if (rc < 0)
            errno = -rc;
        return result;
    }
    *ret = s;
    return WALBUS_OK;
}

static int send_queued(struct walbus_subscription *s);

struct walbus_subscription *walbus_subscription_close(struct walbus_subscription *s)
{
    if (!s)
        return NULL;
    (void)send_queued(s);
    connection_deinit(&s->connection);
    buf_deinit(&s->reason);
    subscription_drop_trust(s);
    free(s->filters);
    free(s->exclusions);
    free(s->client);
    free(s->socket);
    free(s->name);
    free(s);
    return NULL;
}

/* ---- what to wait for ---- */

static bool ack_can_go(const struct walbus_subscription *s)
{
    return s->ack_queued && s->state == STATE_READY && !s->connection.unwritable &&
           position_compare(s->acked, s->sequence.last) <= 0;
}

static bool output_waits(const struct walbus_subscription *s)
{
    return connection_output_waits(&s->connection) || ack_can_go(s);
}

int walbus_subscription_fd(const struct walbus_subscription *s)
{
    return s ? s->connection.fd : -1;
}

short walbus_subscription_events(const struct walbus_subscription *s)
{
    if (!s || s->connection.fd < 0)
        return 0;
    return (short)(output_waits(s) ? POLLIN | POLLOUT : POLLIN);
}

int walbus_subscription_timeout(const struct walbus_subscription *s)
{
    if (!s)
        return -1;
    if (s->more || s->gap_waits || s->state == STATE_ENDED ||
        (s->stopping && !s->connection.unwritable && !output_waits(s)))
        return 0;
    return s->state == STATE_WAITING ? clock_ms_until(s->wake_ns) : -1;
}

/* ---- sending ---- */

void subscription_forget_acks(struct walbus_subscription *s)
{
    s->acked = s->confirm = s->delivered = (struct position){0};
    s->ack_queued = s->ack_confirm = s->ack_sending = s->confirming = false;
}

/** 0: all is sent that can be; 1: some is left; -ENOMEM: call again. */
static int send_queued(struct walbus_subscription *s)
{
    for (;;) {
        if (connection_flush(&s->connection))
            return 1;
        if (!s->connection.unwritable)
            s->ack_sending = false;
        if (!ack_can_go(s))
            return 0;
        struct control_ack ack = {.position = s->acked, .confirm = s->ack_confirm};
        struct buf frame = BUF_INIT;
        control_ack_encode(&ack, false, &frame);
        if (connection_queue(&s->connection, &frame) < 0)
            return -ENOMEM;
        s->ack_queued = s->ack_confirm = false;
        s->ack_sending = true;
    }
}

enum walbus_result walbus_subscription_flush(struct walbus_subscription *s)
{
    if (!s)
        return WALBUS_BAD_ARGUMENT;
    forget_error(s);
    int rc = send_queued(s);
    if (rc < 0)
        return note(s, WALBUS_NO_MEMORY);
    /* What waits for the next READY is no less unsent than what the socket does not take. */
    bool waits = s->state != STATE_ENDED && (s->ack_queued || s->ack_sending);
    return note(s, rc > 0 || waits ? WALBUS_AGAIN : WALBUS_OK);
}

enum walbus_result walbus_subscription_ack(struct walbus_subscription *s,
                                           struct walbus_position position, unsigned flags)
{
    struct position p = position_given(position), last = {0};

    if (!s)
        return WALBUS_BAD_ARGUMENT;
    forget_error(s);
    if (flags & ~WALBUS_ACK_CONFIRM) {
        s->error = "There is an unknown flag.";
        return WALBUS_BAD_ARGUMENT;
    }
    if (s->was_ready)
        last =
            position_compare(s->delivered, s->sequence.last) > 0 ? s->delivered : s->sequence.last;
    if (position_compare(p, last) > 0) {
        char given[POSITION_TEXT_SIZE], delivered[POSITION_TEXT_SIZE];

        (void)snprintf(s->why, sizeof s->why,
                       "%s cannot be acknowledged: the last position delivered is %s.",
                       position_format(p, given), position_format(last, delivered));
        s->error = s->why;
        return WALBUS_BAD_ARGUMENT;
    }
    /* What is known is not said again: a caller acknowledges every delivery, ACKED too, which would
     * be answered by another ACKED, without end. */
    if (position_compare(p, s->acked) > 0) {
        s->acked = p;
        s->ack_queued = true;
        subscription_settle(s);
    }
    if ((flags & WALBUS_ACK_CONFIRM) && position_compare(p, s->confirm) > 0) {
        s->confirm = p;
        s->confirming = s->ack_confirm = s->ack_queued = true;
    }
    return WALBUS_OK;
}

/* ---- receiving ---- */

static void connection_ended(struct walbus_subscription *s, int error)
{
    subscription_log(s, "%s%s%s; reconnecting.",
                     s->stopping ? "The router is being stopped"
                                 : "The connection to the router ended",
                     error ? ": " : "", error ? strerror(error) : "");
    s->told_gone = true;
    subscription_reconnect(s);
}

/** Takes frames out of what was received until one is a delivery, receiving more as needed. 1: it is made; 0, and
 *  s->paused if there may be more; -ENOMEM: call again. */
static int receive(struct walbus_subscription *s)
{
    unsigned fills = FILLS_PER_PROCESS;
    uint64_t withheld_max = s->withheld + WITHHELD_PER_PROCESS;

    for (;;) {
        struct frame_header h;
        const uint8_t *body;
        char why[FRAME_READER_WHY_SIZE];
        int rc = connection_receive(&s->connection, &fills, &h, &body, why);

        if (rc == 0 || rc == -ENOMEM)
            return rc;
        if (rc == -EBADMSG) {
            subscription_breach(s, CONTROL_ERROR_PROTOCOL, why);
            return 0;
        }
        if (rc < 0) {
            connection_ended(s, rc == -EPIPE ? 0 : -rc);
            return 0;
        }
        rc = subscription_on_frame(s, h, body);
        if (rc == -ENOMEM)
            frame_reader_put_back(&s->connection.in);
        if (rc != 0 || s->connection.fd < 0)
            return rc;
        s->paused = s->withheld == withheld_max;
        if (s->paused)
            return 0;
    }
}

/** As receive(). */
static int step(struct walbus_subscription *s)
{
    if (s->gap_waits) {
        s->gap_waits = false;
        delivery_gap(&s->delivery, &s->gap, s->lost_why);
        return 1;
    }
    if (s->state == STATE_ENDED)
        return 0;
    if (s->state == STATE_WAITING) {
        if (clock_monotonic_ns() < s->wake_ns)
            return 0;
        int rc = try_connect(s);
        if (rc < 0)
            return rc == -ENOMEM ? rc : 0;
    }
    int rc = send_queued(s);
    if (rc < 0)
        return rc;
    if (s->stopping_seen && rc == 0) /* the caller has acknowledged what it wanted to */
        connection_end_sending(&s->connection);
    rc = receive(s);
    if (rc >= 0 && send_queued(s) < 0 && rc == 0)
        return -ENOMEM;
    s->stopping_seen = s->stopping && rc == 0 && !s->paused;
    return rc;
}

enum walbus_result walbus_subscription_process(struct walbus_subscription *s,
                                               const struct walbus_delivery **ret)
{
    if (!s)
        return WALBUS_BAD_ARGUMENT;
    forget_error(s);
    if (!ret)
        return note(s, WALBUS_BAD_ARGUMENT);
    s->paused = false;
    int rc = step(s);
    /* What there was no memory for may wait in here, and not in the socket. */
    s->more = rc != 0 || s->paused;
    if (rc < 0)
        return note(s, WALBUS_NO_MEMORY);
    if (rc == 0 && s->state == STATE_ENDED) {
        s->error = s->end_why;
        s->error_code = s->end_code;
        return s->end;
    }
    *ret = rc > 0 ? &s->delivery : NULL;
    return WALBUS_OK;
}

enum walbus_result walbus_subscription_next(struct walbus_subscription *s, int timeout_ms,
                                            const struct walbus_delivery **ret)
{
    uint64_t deadline = UINT64_MAX;

    if (!s)
        return WALBUS_BAD_ARGUMENT;
    if (!ret || timeout_ms < -1) {
        forget_error(s);
        return note(s, WALBUS_BAD_ARGUMENT);
    }
    if (timeout_ms >= 0)
        deadline = clock_monotonic_ns() + (uint64_t)timeout_ms * 1000000;
    for (;;) {
        const struct walbus_delivery *d;
        enum walbus_result result = walbus_subscription_process(s, &d);

        if (result != WALBUS_OK)
            return result;
        if (d) {
            *ret = d;
            return WALBUS_OK;
        }
        int left = clock_ms_until(deadline), own = walbus_subscription_timeout(s);
        if (left == 0)
            return note(s, WALBUS_TIMEOUT);
        struct pollfd fd = {.fd = s->connection.fd, .events = walbus_subscription_events(s)};
        if (poll(&fd, 1, own < 0 ? left : MIN(own, left)) < 0)
            return note(s, errno == EINTR ? WALBUS_INTERRUPTED : WALBUS_NO_MEMORY);
    }
}

/* ---- where it stands ---- */

struct walbus_position walbus_subscription_position(const struct walbus_subscription *s)
{
    return position_shown(s && s->was_ready ? subscription_place(s) : (struct position){0});
}

const char *walbus_subscription_identity(const struct walbus_subscription *s)
{
    return s && s->was_ready ? s->identity : "";
}
