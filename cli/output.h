/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_OUTPUT_H
#define WALBUS_CLI_OUTPUT_H

/*
 * Buffered writing to a descriptor that may be a full pipe, without ever being
 * stuck in it: a stop (a descriptor that becomes readable, such as a signalfd) or a
 * deadline ends the wait. stdio could neither be interrupted so, nor tell how much was written.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/macros.h"

struct output {
    struct buf buf; /* append here, then flush */
    size_t written; /* of `buf` */
    int fd;         /* not owned */
    bool is_file;   /* regular */
    bool waits;     /* a write may have to wait for a reader: pipes, sockets, terminals */
};

/** 0, or -EBADF when the descriptor is closed or not open for writing. */
int output_init(struct output *ret, int fd) MUST_CHECK;
void output_deinit(struct output *o);

/**
 * Writes everything. 0: done, the buffer is empty. 1: `stop_fd` became readable, or `deadline_ns`
 * (monotonic; UINT64_MAX: none) passed; a later call goes on where this one ended. A negative
 * errno: -EPIPE when nobody reads any more, -ENOMEM when building the buffer failed.
 */
int output_flush(struct output *o, int stop_fd, uint64_t deadline_ns) MUST_CHECK;

#endif
