/* SPDX-License-Identifier: PostgreSQL */
#include "client/subscriber_private.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"

/* Delays between connects: the n-th is drawn from the upper half of 0 to FIRST * 2^n, at most MAX.
 * So a thousand subscribers of a restarted router do not come back in one instant. */
#define BACKOFF_FIRST_MS 100u
#define BACKOFF_MAX_MS   2000u

/** Receives per call of process: bounds the time spent on one large frame that keeps coming. */
#define FILLS_PER_PROCESS 16

static struct filter *copy_filters(const struct subscriber_options *o)
{
    size_t n = o->n_filters + o->n_exclusions, texts = 0;

    for (size_t i = 0; i < n; i++)
        texts += (i < o->n_filters ? o->filters[i] : o->exclusions[i - o->n_filters]).text.size;
    struct filter *copy = malloc(n * sizeof *copy + texts + 1);
    if (!copy)
        return NULL;

    uint8_t *to = (uint8_t *)(copy + n);
    for (size_t i = 0; i < n; i++) {
        copy[i] = i < o->n_filters ? o->filters[i] : o->exclusions[i - o->n_filters];
        if (copy[i].text.size > 0)
            memcpy(to, copy[i].text.data, copy[i].text.size);
        copy[i].text.data = to;
        to += copy[i].text.size;
    }
    return copy;
}

int subscriber_new(const struct subscriber_options *options, struct subscriber **ret)
{
    struct sockaddr_un address;
    int rc = fd_socket_address(options->socket, &address);

    if (rc < 0)
        return rc;
    struct subscriber *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->fd = -1;
    s->socket = strdup(options->socket);
    s->client = strdup(options->client ? options->client : "");
    s->filters = copy_filters(options);
    if (!s->socket || !s->client || !s->filters) {
        (void)subscriber_free(s);
        return -ENOMEM;
    }
    s->n_filters = options->n_filters;
    s->exclusions = s->filters + s->n_filters;
    s->n_exclusions = options->n_exclusions;
    s->notice = options->notice;
    s->context = options->context;
    *ret = s;
    return 0;
}

struct subscriber *subscriber_free(struct subscriber *s)
{
    if (!s)
        return NULL;
    s->fd = fd_close(s->fd);
    frame_reader_deinit(&s->in);
    buf_deinit(&s->out);
    free(s->filters);
    free(s->client);
    free(s->socket);
    free(s);
    return NULL;
}

void subscriber_notify(struct subscriber *s, enum subscriber_notice notice, const char *sentence)
{
    if (s->notice)
        s->notice(s->context, notice, sentence);
}

/** Drops everything that belongs to one connection. */
void subscriber_disconnect(struct subscriber *s)
{
    s->fd = fd_close(s->fd);
    frame_reader_reset(&s->in);
    buf_deinit(&s->out);
    s->out_sent = 0;
    s->unwritable = s->stopping = s->stopping_seen = false;
    s->resuming = false;
}

static uint32_t random_below(uint32_t bound)
{
    uint32_t r;

    if (getrandom(&r, sizeof r, GRND_NONBLOCK) != (ssize_t)sizeof r)
        r = (uint32_t)clock_monotonic_ns(); /* early at boot; only jitter hangs on it */
    return r % bound;
}

void subscriber_wait_for_retry(struct subscriber *s)
{
    unsigned limit = BACKOFF_MAX_MS;
    uint64_t now = clock_monotonic_ns();

    /* A connection that lasted shows that nothing is wrong with connecting. */
    if (s->state == STATE_READY && now - s->ready_ns >= BACKOFF_MAX_MS * UINT64_C(1000000))
        s->attempts = 0;
    if (s->attempts < 5)
        limit = MIN(BACKOFF_FIRST_MS << s->attempts, BACKOFF_MAX_MS);
    s->attempts++;
    s->wake_ns = now + (limit / 2 + random_below(limit / 2 + 1)) * UINT64_C(1000000);
    s->state = STATE_WAITING;
}

static int try_connect(struct subscriber *s)
{
    int fd = fd_connect_unix(s->socket);

    if (fd < 0) {
        subscriber_wait_for_retry(s);
        return fd;
    }
    s->fd = fd;
    s->state = STATE_GREETING;
    struct control_hello hello = {
        .min = PROTOCOL_VERSION,
        .max = PROTOCOL_VERSION,
        .layout = FRAME_LAYOUT,
        .client = {(const uint8_t *)s->client, strlen(s->client)},
    };
    control_hello_encode(&hello, &s->out);
    return 0;
}

int subscriber_start(struct subscriber *s)
{
    if (s->state != STATE_NEW)
        return 0;
    int rc = try_connect(s);
    return rc == -EAGAIN ? 0 : rc;
}

void subscriber_restart(struct subscriber *s, bool from_now)
{
    if (s->state != STATE_FAILED)
        return;
    if (from_now) {
        sequence_start(&s->sequence, (struct position){0});
        s->ack_queued = s->ack_confirm = false;
    }
    subscriber_wait_for_retry(s);
}

int subscriber_fd(const struct subscriber *s)
{
    return s->fd;
}

static bool output_waits(const struct subscriber *s)
{
    return s->fd >= 0 && !s->unwritable &&
           (s->out_sent < s->out.size || (s->ack_queued && s->state == STATE_READY));
}

short subscriber_events(const struct subscriber *s)
{
    if (s->fd < 0)
        return 0;
    return (short)(output_waits(s) ? POLLIN | POLLOUT : POLLIN);
}

int subscriber_timeout(const struct subscriber *s)
{
    if (s->more || s->state == STATE_NEW || s->state == STATE_FAILED ||
        (s->stopping && !s->unwritable && !output_waits(s)))
        return 0;
    if (s->state != STATE_WAITING)
        return -1;
    uint64_t now = clock_monotonic_ns();
    return now >= s->wake_ns ? 0 : (int)((s->wake_ns - now + 999999) / 1000000);
}

struct position subscriber_position(const struct subscriber *s)
{
    return s->sequence.last;
}

/* ---- sending ---- */

int subscriber_flush(struct subscriber *s)
{
    while (output_waits(s)) {
        if (s->out_sent == s->out.size) {
            buf_clear(&s->out);
            s->out_sent = 0;
            struct control_ack ack = {.position = s->ack, .confirm = s->ack_confirm};
            control_ack_encode(&ack, false, &s->out);
            if (s->out.failed)
                return -ENOMEM;
            s->ack_queued = s->ack_confirm = false;
        }
        ssize_t n = send(s->fd, s->out.data + s->out_sent, s->out.size - s->out_sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0)
            s->out_sent += (size_t)n;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 1;
        else if (errno != EINTR)
            s->unwritable = true;
    }
    return s->out.failed ? -ENOMEM : 0;
}

int subscriber_ack(struct subscriber *s, struct position position, bool confirm)
{
    if (position_compare(position, s->sequence.last) > 0)
        return -EINVAL;
    if (!s->ack_queued || position_compare(position, s->ack) > 0)
        s->ack = position;
    s->ack_queued = true;
    s->ack_confirm |= confirm;
    return 0;
}

int subscriber_request(struct subscriber *s, const char *what, struct bytes args, uint64_t *ret_id)
{
    if (s->state != STATE_READY)
        return -ENOTCONN;
    if (s->out.size - s->out_sent + args.size > SUBSCRIBER_QUEUE_MAX)
        return -ENOBUFS;
    if (s->out_sent == s->out.size) {
        buf_clear(&s->out);
        s->out_sent = 0;
    }
    struct control_request request = {
        .id = s->next_id + 1,
        .what = {(const uint8_t *)what, strlen(what)},
        .args = args,
    };
    control_request_encode(&request, &s->out);
    if (s->out.failed)
        return -ENOMEM;
    *ret_id = ++s->next_id;
    return 0;
}

static void connection_ended(struct subscriber *s, int error)
{
    char sentence[SUBSCRIBER_WHY_SIZE];

    (void)snprintf(sentence, sizeof sentence, "%s%s%s; reconnecting.",
                   s->stopping ? "The router is being stopped"
                               : "The connection to the router ended",
                   error ? ": " : "", error ? strerror(error) : "");
    subscriber_disconnect(s);
    subscriber_wait_for_retry(s);
    subscriber_notify(s, SUBSCRIBER_NOTICE_DISCONNECTED, sentence);
}

/** Takes frames out of what was received until one is an event, receiving more as needed. */
static int receive(struct subscriber *s, struct subscriber_event *ret)
{
    struct frame_header h;
    const uint8_t *body;
    char why[FRAME_READER_WHY_SIZE];

    for (unsigned fills = 0;;) {
        int rc = frame_reader_next(&s->in, &h, &body, why);

        if (rc < 0)
            return subscriber_fail(s, CONTROL_ERROR_PROTOCOL, why, ret);
        if (rc > 0) {
            rc = subscriber_on_frame(s, h, body, ret);
            if (rc != 0 || s->fd < 0)
                return rc;
            continue;
        }
        if (fills++ == FILLS_PER_PROCESS)
            return 0;
        ssize_t n = frame_reader_fill(&s->in, s->fd);
        if (n == -ENOMEM)
            return -ENOMEM;
        if (n == -EAGAIN)
            return 0;
        if (n <= 0) {
            connection_ended(s, (int)-n);
            return 0;
        }
    }
}

/** The caller has acknowledged what it wanted to: the router need not wait for more. */
static void end_sending(struct subscriber *s)
{
    if (!s->unwritable)
        (void)shutdown(s->fd, SHUT_WR);
    s->unwritable = true;
}

int subscriber_process(struct subscriber *s, struct subscriber_event *ret)
{
    struct subscriber_event event = {0};

    s->more = false;
    if (s->state == STATE_NEW || s->state == STATE_FAILED)
        return -ENOTCONN;
    if (s->state == STATE_WAITING) {
        if (clock_monotonic_ns() < s->wake_ns)
            return 0;
        subscriber_disconnect(s);
        if (try_connect(s) < 0)
            return 0;
    }
    int rc = subscriber_flush(s);
    if (rc < 0)
        return rc;
    if (s->stopping_seen && rc == 0)
        end_sending(s);
    rc = receive(s, &event);
    if (rc < 0)
        return rc;
    if (subscriber_flush(s) < 0)
        return -ENOMEM;
    if (rc > 0) {
        s->more = true;
        *ret = event;
    }
    s->stopping_seen = s->stopping && rc == 0;
    return rc;
}
