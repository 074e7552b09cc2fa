/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLIENT_CONNECTION_H
#define WALBUS_CLIENT_CONNECTION_H

/*
 * A connection to the router's socket, from HELLO on: frames out and frames in.
 * What a subscription and a single request have in common. Nothing here waits.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/macros.h"
#include "base/socket_place.h"
#include "client/frame_reader.h"
#include "codec/control.h"
#include "codec/frame.h"

struct connection {
    int fd; /* -1: none */
    struct frame_reader in;
    struct buf out;
    size_t out_sent;
    bool unwritable; /* nothing can be sent any more; what came before is still to be read */
};

#define CONNECTION_INIT ((struct connection){.fd = -1})

/** The path that a caller of the library means: `given`, else the environment's WALBUS_SOCKET, else
 *  one of the usual places. As socket_place_of_client(): -ENOENT is no router yet, -EINVAL never one. */
int connection_place(const char *given, char **ret, char why[SOCKET_PLACE_WHY_SIZE]) MUST_CHECK;

/** Connects and queues HELLO. 0; -ENOMEM; another negative errno says why there is no router; -EAGAIN:
 *  its queue of connections is full. On a failure there is no connection. */
int connection_open(struct connection *c, const char *path, const char *client) MUST_CHECK;

/** Closes, dropping everything both ways. What was lent out stays until the next connection_open(). */
void connection_close(struct connection *c);

/** Frees what connection_close() keeps. */
void connection_deinit(struct connection *c);

/** Whether something is queued that can be sent. */
bool connection_output_waits(const struct connection *c);

/** Queues the frames in `frame` and empties it. 0, or -ENOMEM: then nothing was queued, and what was before still
 *  is. */
int connection_queue(struct connection *c, struct buf *frame) MUST_CHECK;

/** Sends what is queued as far as the socket takes it. Whether something is left that can be. */
bool connection_flush(struct connection *c);

/** Nothing will be sent any more: the other end need not wait for it. */
void connection_end_sending(struct connection *c);

/**
 * The next frame, receiving as needed, but at most *fills times, which it counts down. 1: *ret_header
 * and *ret_body, lent until the next call or connection_open(); 0: not now; -EBADMSG and a sentence:
 * no frame; -ENOMEM: call again; -EPIPE: the other end has closed; another negative errno: it broke.
 */
int connection_receive(struct connection *c, unsigned *fills, struct frame_header *ret_header,
                       const uint8_t **ret_body, char why[FRAME_READER_WHY_SIZE]) MUST_CHECK;

/** Takes the WELCOME's body. 0, or -EBADMSG and a sentence; `*ret_version`: whether it is about the version. */
int connection_welcome(struct bytes body, struct control_welcome *ret, bool *ret_version,
                       char why[CONTROL_WHY_SIZE]) MUST_CHECK;

/** The other end's words as one line for people: what a terminal would act on becomes '?', and what is too long for
 *  `out` is cut off between characters. */
void connection_words(struct bytes text, char *out, size_t size);

#endif
