/* SPDX-License-Identifier: PostgreSQL */
#include "walbus/subscribe.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/socket_place.h"
#include "client/connection.h"
#include "codec/cbor.h"
#include "codec/control.h"

/** Of the one request of a connection. */
#define REQUEST_ID 1u
/** The item stands inside the map of the frame. */
#define REQUEST_NESTING 1u
/** How soon a connect is tried again when the router's queue of them is full. */
#define AGAIN_MS 10
/** Receives before the time is looked at. */
#define FILLS 16u

/** Longest sentence, with its NUL: one of the rule of the socket's place, or a path and what is said about it. */
#define REPLY_WHY_SIZE 576
/** Longest code of an ERROR, with its NUL. */
#define REPLY_CODE_SIZE 32

struct walbus_reply {
    struct buf result;
    char why[REPLY_WHY_SIZE];
    char code[REPLY_CODE_SIZE];
};

/** What lives as long as the call. */
struct request {
    const char *path;
    struct bytes what, args;
    uint64_t deadline_ns;
    struct connection connection;
    bool welcomed, done;
    struct walbus_reply *reply;
};

static enum walbus_result fail(struct request *r, enum walbus_result result, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

static enum walbus_result fail(struct request *r, enum walbus_result result, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(r->reply->why, sizeof r->reply->why, fmt, ap);
    va_end(ap);
    return result;
}

static enum walbus_result no_router(struct request *r, int error)
{
    enum walbus_result result =
        fail(r, WALBUS_NO_ROUTER, "Cannot reach the router at %s: %s%s.", r->path, strerror(error),
             socket_place_mend(error));

    errno = error;
    return result;
}

/** Waits for the descriptor, but not past the time. */
static enum walbus_result wait_for(struct request *r, short events, int at_most_ms)
{
    int left = clock_ms_until(r->deadline_ns);
    struct pollfd fd = {.fd = r->connection.fd, .events = events};

    if (left == 0)
        return fail(r, WALBUS_TIMEOUT, "The router at %s does not answer.", r->path);
    if (poll(&fd, 1, MIN(left, at_most_ms)) >= 0)
        return WALBUS_OK;
    return errno == EINTR
               ? fail(r, WALBUS_INTERRUPTED, "%s.", walbus_result_text(WALBUS_INTERRUPTED))
               : WALBUS_NO_MEMORY;
}

static enum walbus_result connect_to_router(struct request *r)
{
    for (;;) {
        int rc = connection_open(&r->connection, r->path, NULL);
        if (rc == 0)
            return WALBUS_OK;
        if (rc == -ENOMEM)
            return WALBUS_NO_MEMORY;
        if (rc != -EAGAIN)
            return no_router(r, -rc);
        enum walbus_result result = wait_for(r, 0, AGAIN_MS);
        if (result != WALBUS_OK)
            return result;
    }
}

static enum walbus_result ask(struct request *r)
{
    struct control_request request = {.id = REQUEST_ID, .what = r->what, .args = r->args};
    struct buf frame = BUF_INIT;

    control_request_encode(&request, &frame);
    return connection_queue(&r->connection, &frame) < 0 ? WALBUS_NO_MEMORY : WALBUS_OK;
}

static enum walbus_result breach(struct request *r, uint8_t type, const char *why)
{
    return fail(r, WALBUS_PROTOCOL, "%s: %s", frame_type_name(type), why);
}

static enum walbus_result on_reply(struct request *r, struct bytes body)
{
    struct control_reply reply;
    char why[CONTROL_WHY_SIZE];

    if (control_reply_decode(body, &reply, why) < 0)
        return breach(r, FRAME_REPLY, why);
    if (reply.id != REQUEST_ID)
        return breach(r, FRAME_REPLY, "It answers another request.");
    buf_append(&r->reply->result, reply.result.data, reply.result.size);
    r->done = true;
    return r->reply->result.failed ? WALBUS_NO_MEMORY : WALBUS_OK;
}

static enum walbus_result on_error(struct request *r, struct bytes body)
{
    struct control_error e;
    char why[CONTROL_WHY_SIZE];

    if (control_error_decode(body, &e, why) < 0)
        return breach(r, FRAME_ERROR, why);
    if (bytes_equal(e.code, bytes_of_text(CONTROL_ERROR_STOPPING)))
        return WALBUS_OK; /* it answers all the same, or closes */
    connection_words(e.text, r->reply->why, sizeof r->reply->why);
    connection_words(e.code, r->reply->code, sizeof r->reply->code);
    return bytes_equal(e.code, bytes_of_text(CONTROL_ERROR_VERSION)) ? WALBUS_PROTOCOL
                                                                     : WALBUS_REFUSED;
}

static enum walbus_result on_frame(struct request *r, struct frame_header h, const uint8_t *body)
{
    struct bytes bytes = {body, h.size};
    struct control_welcome welcome;
    char why[CONTROL_WHY_SIZE];
    bool version;

    if (h.type == FRAME_ERROR)
        return on_error(r, bytes);
    if (h.type == FRAME_WELCOME && !r->welcomed) {
        if (connection_welcome(bytes, &welcome, &version, why) < 0)
            return breach(r, h.type, why);
        r->welcomed = true;
        return ask(r);
    }
    if (h.type == FRAME_REPLY && r->welcomed)
        return on_reply(r, bytes);
    return fail(r, WALBUS_PROTOCOL, "The router sent a frame of type %s (0x%02x) %s.",
                frame_type_name(h.type), h.type,
                r->welcomed ? "where it has no meaning" : "before WELCOME");
}

/** Sends and receives until the descriptor has to be waited for. */
static enum walbus_result exchange(struct request *r)
{
    char why[FRAME_READER_WHY_SIZE];
    struct frame_header h;
    const uint8_t *body;
    unsigned fills = FILLS;
    int rc;

    (void)connection_flush(&r->connection);
    while ((rc = connection_receive(&r->connection, &fills, &h, &body, why)) > 0) {
        enum walbus_result result = on_frame(r, h, body);

        if (result != WALBUS_OK || r->done)
            return result;
        (void)connection_flush(&r->connection);
    }
    switch (rc) {
    case 0:
        return WALBUS_OK;
    case -ENOMEM:
        return WALBUS_NO_MEMORY;
    case -EBADMSG:
        return fail(r, WALBUS_PROTOCOL, "%s", why);
    case -EPIPE:
        (void)fail(r, WALBUS_NO_ROUTER, "The router at %s closed the connection without an answer.",
                   r->path);
        errno = ECONNRESET; /* last: making the sentence may set it */
        return WALBUS_NO_ROUTER;
    default:
        return no_router(r, -rc);
    }
}

static enum walbus_result run(struct request *r)
{
    enum walbus_result result = connect_to_router(r);

    while (result == WALBUS_OK) {
        result = exchange(r);
        if (result != WALBUS_OK || r->done)
            return result;
        bool waits = connection_output_waits(&r->connection);
        result = wait_for(r, (short)(waits ? POLLIN | POLLOUT : POLLIN), INT_MAX);
    }
    return result;
}

/** Whether REQUEST fits into a frame. */
static enum walbus_result check_size(struct request *r)
{
    struct control_request request = {.id = REQUEST_ID, .what = r->what, .args = r->args};
    struct buf frame = BUF_INIT;

    control_request_encode(&request, &frame);
    bool failed = frame.failed;
    size_t size = frame.size;
    buf_deinit(&frame);
    if (failed)
        return WALBUS_NO_MEMORY;
    if (size - FRAME_HEADER_SIZE > FRAME_CONTROL_MAX)
        return fail(r, WALBUS_TOO_LARGE, "The request has %zu bytes; a frame can have %u.",
                    size - FRAME_HEADER_SIZE, FRAME_CONTROL_MAX);
    return WALBUS_OK;
}

static enum walbus_result find_and_run(struct request *r, const char *socket)
{
    char why[SOCKET_PLACE_WHY_SIZE], *path;
    enum walbus_result result = check_size(r);

    if (result != WALBUS_OK)
        return result;
    int rc = connection_place(socket, &path, why);
    if (rc == -ENOMEM)
        return WALBUS_NO_MEMORY;
    if (rc < 0) {
        result = fail(r, rc == -ENOENT ? WALBUS_NO_ROUTER : WALBUS_BAD_SOCKET, "%s", why);
        errno = -rc;
        return result;
    }
    r->path = path;
    result = run(r);
    int error = errno;
    connection_deinit(&r->connection);
    free(path);
    errno = error;
    return result;
}

enum walbus_result walbus_request(const char *socket, const char *what, const void *args,
                                  size_t args_size, int timeout_ms, struct walbus_reply **ret)
{
    struct request r = {
        .what = bytes_of_text(what),
        .args = {args, args_size},
        .deadline_ns = UINT64_MAX,
        .connection = CONNECTION_INIT,
    };

    if (!what || !ret || !text_is_utf8(r.what) || timeout_ms < -1 || (!args && args_size > 0) ||
        (args && cbor_check_inside(r.args, REQUEST_NESTING, NULL) != CBOR_OK))
        return WALBUS_BAD_ARGUMENT;
    if (timeout_ms >= 0)
        r.deadline_ns = clock_monotonic_ns() + (uint64_t)timeout_ms * 1000000;
    r.reply = calloc(1, sizeof *r.reply);
    if (!r.reply)
        return WALBUS_NO_MEMORY;
    enum walbus_result result = find_and_run(&r, socket);
    if (result == WALBUS_NO_MEMORY) {
        (void)walbus_reply_free(r.reply);
        return result;
    }
    *ret = r.reply;
    return result;
}

const void *walbus_reply_result(const struct walbus_reply *reply, size_t *ret_size)
{
    if (ret_size)
        *ret_size = reply ? reply->result.size : 0;
    return reply ? reply->result.data : NULL;
}

const char *walbus_reply_error(const struct walbus_reply *reply)
{
    return reply ? reply->why : "";
}

const char *walbus_reply_error_code(const struct walbus_reply *reply)
{
    return reply ? reply->code : "";
}

struct walbus_reply *walbus_reply_free(struct walbus_reply *reply)
{
    if (reply)
        buf_deinit(&reply->result);
    free(reply);
    return NULL;
}
