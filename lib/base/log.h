/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_BASE_LOG_H
#define WALBUS_BASE_LOG_H

/*
 * One line an event to stderr: time, level, stable id, one sentence, key=value
 * fields. Only programs log; libraries return. Values may hold foreign bytes
 * (a prefix, a server's error text): everything that is not printable UTF-8 is
 * escaped, so a line is always one line, of at most PIPE_BUF bytes. Logging never
 * waits: while nobody reads the pipe at the other end, lines are dropped and counted.
 *
 *   log_line(log, LOG_INFO, "source.streaming", "Streaming from the server.",
 *            LOG_STR("slot", slot), LOG_U64("pid", pid));
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum log_level { LOG_DEBUG = 0, LOG_INFO, LOG_WARNING, LOG_ERROR };
enum log_format { LOG_FORMAT_TEXT = 0, LOG_FORMAT_JSON };

struct logger {
    FILE *out; /* not owned; NULL: silent */
    enum log_level level;
    enum log_format format;
    uint64_t dropped; /* lines that could not be written at once, since the last that could */
    uint64_t lines[LOG_ERROR + 1]; /* written or passed over, by level */
};

enum log_field_kind { LOG_FIELD_END = 0, LOG_FIELD_STR, LOG_FIELD_U64, LOG_FIELD_I64 };

struct log_field {
    enum log_field_kind kind;
    const char *key;
    const char *str; /* NULL is logged as an empty string */
    uint64_t number;
};

#define LOG_STR(k, v) ((struct log_field){LOG_FIELD_STR, (k), (v), 0})
#define LOG_U64(k, v) ((struct log_field){LOG_FIELD_U64, (k), NULL, (uint64_t)(v)})
#define LOG_I64(k, v) ((struct log_field){LOG_FIELD_I64, (k), NULL, (uint64_t)(int64_t)(v)})

void log_write(struct logger *log, enum log_level level, const char *id, const char *sentence,
               const struct log_field *fields);

#define log_line(log, level, id, sentence, ...)                                                    \
    log_write((log), (level), (id), (sentence),                                                    \
              (const struct log_field[]){__VA_ARGS__ __VA_OPT__(, ) {LOG_FIELD_END, NULL, NULL, 0}})

#endif
