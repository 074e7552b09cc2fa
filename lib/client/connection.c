/* SPDX-License-Identifier: PostgreSQL */
#include "client/connection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/text.h"

int connection_place(const char *given, char **ret, char why[SOCKET_PLACE_WHY_SIZE])
{
    const char *variable = getenv("WALBUS_SOCKET");

    if (!given && variable && *variable)
        given = variable;
    return socket_place_of_client(given, ret, why);
}

int connection_open(struct connection *c, const char *path, const char *client)
{
    struct control_hello hello = {
        .min = PROTOCOL_VERSION,
        .max = PROTOCOL_VERSION,
        .layout = FRAME_LAYOUT,
        .client = bytes_of_text(client),
    };

    connection_close(c);
    frame_reader_reset(&c->in);
    control_hello_encode(&hello, &c->out); /* first, so that the router is not called in vain */
    int fd = c->out.failed ? -ENOMEM : fd_connect_unix(path);
    if (fd < 0) {
        buf_deinit(&c->out);
        return fd;
    }
    c->fd = fd;
    return 0;
}

void connection_close(struct connection *c)
{
    c->fd = fd_close(c->fd);
    buf_deinit(&c->out);
    c->out_sent = 0;
    c->unwritable = false;
}

void connection_deinit(struct connection *c)
{
    connection_close(c);
    frame_reader_deinit(&c->in);
}

bool connection_output_waits(const struct connection *c)
{
    return c->fd >= 0 && !c->unwritable && c->out_sent < c->out.size;
}

int connection_queue(struct connection *c, struct buf *frame)
{
    struct buf both = BUF_INIT;

    /* A buffer whose growth fails is emptied, so what waits is copied and not added to. It is rare. */
    if (!frame->failed && c->out_sent < c->out.size) {
        buf_append(&both, c->out.data + c->out_sent, c->out.size - c->out_sent);
        buf_append(&both, frame->data, frame->size);
        buf_deinit(frame);
    } else {
        both = *frame;
        *frame = BUF_INIT;
    }
    if (both.failed)
        return -ENOMEM;
    buf_deinit(&c->out);
    c->out = both;
    c->out_sent = 0;
    return 0;
}

bool connection_flush(struct connection *c)
{
    while (connection_output_waits(c)) {
        ssize_t n = send(c->fd, c->out.data + c->out_sent, c->out.size - c->out_sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0)
            c->out_sent += (size_t)n;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return true;
        else if (errno != EINTR)
            c->unwritable = true; /* why, the receiving side will find */
    }
    return false;
}

void connection_end_sending(struct connection *c)
{
    if (c->fd >= 0 && !c->unwritable)
        (void)shutdown(c->fd, SHUT_WR);
    c->unwritable = true;
}

int connection_receive(struct connection *c, unsigned *fills, struct frame_header *ret_header,
                       const uint8_t **ret_body, char why[FRAME_READER_WHY_SIZE])
{
    for (;;) {
        int rc = frame_reader_next(&c->in, ret_header, ret_body, why);

        if (rc != 0)
            return rc;
        if (*fills == 0)
            return 0;
        --*fills;
        ssize_t n = frame_reader_fill(&c->in, c->fd);
        if (n == -EAGAIN)
            return 0;
        if (n <= 0)
            return n < 0 ? (int)n : -EPIPE;
    }
}

int connection_welcome(struct bytes body, struct control_welcome *ret, bool *ret_version,
                       char why[CONTROL_WHY_SIZE])
{
    struct control_welcome welcome;
    int rc = control_welcome_decode(body, &welcome, why);

    *ret_version =
        rc == 0 && (welcome.version != PROTOCOL_VERSION || welcome.layout != FRAME_LAYOUT);
    if (rc < 0)
        return rc;
    if (*ret_version) {
        (void)snprintf(why, CONTROL_WHY_SIZE,
                       "The router chose a protocol version or frame layout that was not offered.");
        return -EBADMSG;
    }
    *ret = welcome;
    return 0;
}

void connection_words(struct bytes text, char *out, size_t size)
{
    size_t at = 0, to = 0;

    while (at < text.size) {
        uint32_t code_point;
        size_t n = text_utf8_sequence(text.data + at, text.size - at, &code_point);
        bool visible = n > 0 && text_is_visible(code_point);
        size_t width = visible ? n : 1;

        if (width >= size - to)
            break;
        if (visible)
            memcpy(out + to, text.data + at, n);
        else
            out[to] = '?';
        to += width;
        at += MAX(n, (size_t)1);
    }
    out[to] = '\0';
}
