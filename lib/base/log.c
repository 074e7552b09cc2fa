/* SPDX-License-Identifier: PostgreSQL */
#include "base/log.h"

#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/text.h"

static const char *const level_words[] = {
    [LOG_DEBUG] = "debug",
    [LOG_INFO] = "info",
    [LOG_WARNING] = "warning",
    [LOG_ERROR] = "error",
};

/* Whether a value stands for itself between '=' and the next blank. */
static bool is_plain(struct bytes raw, struct bytes visible)
{
    if (raw.size == 0 || !bytes_equal(raw, visible))
        return false;
    for (size_t i = 0; i < raw.size; i++)
        if (raw.data[i] == ' ' || raw.data[i] == '"' || raw.data[i] == '=')
            return false;
    return true;
}

static void put_text_value(struct buf *line, struct buf *scratch, const char *value)
{
    struct bytes raw = bytes_of_text(value);

    buf_clear(scratch);
    text_put_visible(scratch, raw);
    struct bytes visible = buf_bytes(scratch);
    if (is_plain(raw, visible)) {
        buf_append(line, visible.data, visible.size);
        return;
    }
    buf_append_u8(line, '"');
    for (size_t i = 0; i < visible.size; i++) {
        if (visible.data[i] == '"')
            buf_append_u8(line, '\\');
        buf_append_u8(line, visible.data[i]);
    }
    buf_append_u8(line, '"');
}

/*
 * A JSON string. What would act on a terminal is written as \uXXXX; a byte that is no UTF-8,
 * which JSON cannot hold, as the four characters \xHH.
 */
static void put_json_string(struct buf *line, const char *value)
{
    struct bytes raw = bytes_of_text(value);
    size_t at = 0;

    buf_append_u8(line, '"');
    while (at < raw.size) {
        uint32_t code_point;
        size_t n = text_utf8_sequence(raw.data + at, raw.size - at, &code_point);

        if (n == 0) {
            buf_printf(line, "\\\\x%02x", raw.data[at]);
            n = 1;
        } else if (code_point == '"' || code_point == '\\') {
            buf_append_u8(line, '\\');
            buf_append_u8(line, (uint8_t)code_point);
        } else if (code_point == '\n') {
            buf_append_str(line, "\\n");
        } else if (code_point == '\t') {
            buf_append_str(line, "\\t");
        } else if (text_is_visible(code_point)) {
            buf_append(line, raw.data + at, n);
        } else {
            /* Nothing that is hidden lies beyond U+FFFF: no surrogates are needed. */
            buf_printf(line, "\\u%04x", (unsigned)code_point);
        }
        at += n;
    }
    buf_append_u8(line, '"');
}

static void put_text_line(struct buf *line, const char *time, const char *level, const char *id,
                          const char *sentence, const struct log_field *fields)
{
    struct buf scratch = BUF_INIT;

    buf_printf(line, "%s %s %s ", time, level, id);
    text_put_visible(line, bytes_of_text(sentence));
    for (const struct log_field *f = fields; f->kind != LOG_FIELD_END; f++) {
        buf_printf(line, " %s=", f->key);
        if (f->kind == LOG_FIELD_U64)
            buf_printf(line, "%" PRIu64, f->number);
        else if (f->kind == LOG_FIELD_I64)
            buf_printf(line, "%" PRId64, (int64_t)f->number);
        else
            put_text_value(line, &scratch, f->str);
    }
    buf_deinit(&scratch);
}

static void put_json_line(struct buf *line, const char *time, const char *level, const char *id,
                          const char *sentence, const struct log_field *fields)
{
    buf_printf(line, "{\"time\":\"%s\",\"level\":\"%s\",\"id\":", time, level);
    put_json_string(line, id);
    buf_append_str(line, ",\"message\":");
    put_json_string(line, sentence);
    for (const struct log_field *f = fields; f->kind != LOG_FIELD_END; f++) {
        buf_append_u8(line, ',');
        put_json_string(line, f->key);
        buf_append_u8(line, ':');
        if (f->kind == LOG_FIELD_U64)
            buf_printf(line, "%" PRIu64, f->number);
        else if (f->kind == LOG_FIELD_I64)
            buf_printf(line, "%" PRId64, (int64_t)f->number);
        else
            put_json_string(line, f->str);
    }
    buf_append_u8(line, '}');
}

/* Whether a line can be written without waiting: a pipe that nobody reads must not hold up the program. A pipe is
 * writable when PIPE_BUF bytes fit, so longer lines are cut to that. */
static bool takes_line(FILE *out)
{
    struct pollfd p = {.fd = fileno(out), .events = POLLOUT};

    return p.fd < 0 || poll(&p, 1, 0) != 0;
}

/* Half an object is none: one that is too long goes without its fields. */
static void put_whole_json_line(struct buf *line, const char *time, const char *level,
                                const char *id, const char *sentence,
                                const struct log_field *fields)
{
    static const struct log_field none = {LOG_FIELD_END, NULL, NULL, 0};

    put_json_line(line, time, level, id, sentence, fields);
    if (line->size < PIPE_BUF)
        return;
    buf_clear(line);
    put_json_line(line, time, level, id, sentence, &none);
}

static void cut_line(struct buf *line)
{
    if (line->size > PIPE_BUF) {
        line->size = PIPE_BUF;
        line->data[PIPE_BUF - 1] = '\n';
    }
}

void log_write(struct logger *log, enum log_level level, const char *id, const char *sentence,
               const struct log_field *fields)
{
    log->lines[level]++;
    if (!log->out || level < log->level)
        return;
    if (!takes_line(log->out)) {
        log->dropped++;
        return;
    }
    if (log->dropped) {
        uint64_t dropped = log->dropped;

        log->dropped = 0;
        log_line(log, LOG_WARNING, "log.dropped", "Nobody read the log; lines were dropped.",
                 LOG_U64("lines", dropped));
        if (!takes_line(log->out)) {
            log->dropped = 1;
            return;
        }
    }

    char time[CLOCK_TEXT_SIZE];
    struct buf line = BUF_INIT;
    clock_format_rfc3339(clock_realtime_us(), time);
    if (log->format == LOG_FORMAT_JSON)
        put_whole_json_line(&line, time, level_words[level], id, sentence, fields);
    else
        put_text_line(&line, time, level_words[level], id, sentence, fields);
    buf_append_u8(&line, '\n');
    cut_line(&line);
    /* In one piece, so that lines of several processes on one stderr do not mix. A log that
     * cannot be written has nobody to be reported to. */
    (void)fwrite(line.data, 1, line.size, log->out);
    (void)fflush(log->out);
    buf_deinit(&line);
}
