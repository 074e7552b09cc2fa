/* SPDX-License-Identifier: PostgreSQL */
#include "fake_backend.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/macros.h"

#define STARTUP_CODE 196608u /* protocol 3.0 */
#define XID          7
#define TEXT_OID     25
/* More than a socket takes; valgrind looks at all that is offered, each time. */
#define SEND_MAX (1u << 18)

/* ---- sending ---- */

static void client_watch(struct fake_client *c);

static void client_close(struct fake_client *c)
{
    if (c->fd < 0)
        return;
    uv_close((uv_handle_t *)&c->poll, NULL);
    ck_assert_int_eq(close(c->fd), 0);
    c->fd = -1;
}

static void client_write(struct fake_client *c)
{
    while (c->fd >= 0 && c->sent < c->out.size) {
        size_t size = MIN(c->out.size - c->sent, (size_t)SEND_MAX);
        ssize_t n = send(c->fd, c->out.data + c->sent, size, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) { /* nobody reads it any more */
            client_close(c);
            return;
        }
        c->sent += (size_t)n;
    }
    if (c->sent == c->out.size) {
        buf_clear(&c->out);
        c->sent = 0;
    }
    client_watch(c);
}

static void say(struct fake_client *c, char type, const struct buf *body)
{
    if (c->fd < 0)
        return;
    buf_append_u8(&c->out, (uint8_t)type);
    buf_append_u32(&c->out, (uint32_t)body->size + 4);
    buf_append(&c->out, body->data, body->size);
    client_write(c);
}

static void say_empty(struct fake_client *c, char type)
{
    struct buf none = BUF_INIT;

    say(c, type, &none);
}

static void put_text(struct buf *b, const char *text)
{
    buf_append(b, text, strlen(text) + 1);
}

void backend_ready(struct fake_client *c)
{
    struct buf b = BUF_INIT;

    buf_append_u8(&b, 'I');
    say(c, 'Z', &b);
    buf_deinit(&b);
}

void backend_done(struct fake_client *c)
{
    struct buf b = BUF_INIT;

    put_text(&b, "SET");
    say(c, 'C', &b);
    buf_deinit(&b);
}

void backend_row(struct fake_client *c, unsigned n, const char *const *values)
{
    struct buf description = BUF_INIT, row = BUF_INIT, tag = BUF_INIT;

    buf_append_u16(&description, (uint16_t)n);
    buf_append_u16(&row, (uint16_t)n);
    for (unsigned i = 0; i < n; i++) {
        put_text(&description, "column");
        buf_append_u32(&description, 0);
        buf_append_u16(&description, 0);
        buf_append_u32(&description, TEXT_OID);
        buf_append_u16(&description, UINT16_MAX); /* length: variable */
        buf_append_u32(&description, UINT32_MAX);
        buf_append_u16(&description, 0); /* format: text */
        buf_append_u32(&row, values[i] ? (uint32_t)strlen(values[i]) : UINT32_MAX);
        if (values[i])
            buf_append_str(&row, values[i]);
    }
    put_text(&tag, "SELECT 1");
    say(c, 'T', &description);
    say(c, 'D', &row);
    say(c, 'C', &tag);
    buf_deinit(&description);
    buf_deinit(&row);
    buf_deinit(&tag);
}

void backend_error(struct fake_client *c, bool notice, const char *severity, const char *sqlstate,
                   const char *text)
{
    struct buf b = BUF_INIT;
    const struct {
        char field;
        const char *value;
    } fields[] = {{'S', severity}, {'V', severity}, {'C', sqlstate}, {'M', text},
                  {'F', "fake.c"}, {'L', "1"},      {'R', "fake"}};

    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        buf_append_u8(&b, (uint8_t)fields[i].field);
        put_text(&b, fields[i].value);
    }
    buf_append_u8(&b, 0);
    say(c, notice ? 'N' : 'E', &b);
    buf_deinit(&b);
}

void backend_copy_both(struct fake_client *c)
{
    struct buf b = BUF_INIT;

    buf_append_u8(&b, 0);
    buf_append_u16(&b, 0);
    say(c, 'W', &b);
    buf_deinit(&b);
}

void backend_copy_done(struct fake_client *c)
{
    say_empty(c, 'c');
}

void backend_data(struct fake_client *c, struct bytes payload)
{
    struct buf b = BUF_INIT;

    buf_append_u8(&b, 'w');
    for (int i = 0; i < 3; i++) /* two LSNs, which say nothing, and the clock */
        buf_append_u64(&b, 0);
    buf_append(&b, payload.data, payload.size);
    say(c, 'd', &b);
    buf_deinit(&b);
}

void backend_keepalive(struct fake_client *c, uint64_t wal_end, bool reply)
{
    struct buf b = BUF_INIT;

    buf_append_u8(&b, 'k');
    buf_append_u64(&b, wal_end);
    buf_append_u64(&b, 0);
    buf_append_u8(&b, reply);
    say(c, 'd', &b);
    buf_deinit(&b);
}

void backend_begin(struct fake_client *c, uint64_t lsn)
{
    struct buf b = BUF_INIT;

    buf_append_u8(&b, 'B');
    buf_append_u64(&b, lsn);
    buf_append_u64(&b, 0);
    buf_append_u32(&b, XID);
    backend_data(c, buf_bytes(&b));
    buf_deinit(&b);
}

void backend_message(struct fake_client *c, uint64_t lsn, const char *prefix, struct bytes content)
{
    struct buf b = BUF_INIT;

    buf_append_u8(&b, 'M');
    buf_append_u8(&b, 1); /* transactional */
    buf_append_u64(&b, lsn);
    put_text(&b, prefix);
    buf_append_u32(&b, (uint32_t)content.size);
    buf_append(&b, content.data, content.size);
    backend_data(c, buf_bytes(&b));
    buf_deinit(&b);
}

void backend_commit(struct fake_client *c, uint64_t lsn)
{
    struct buf b = BUF_INIT;

    buf_append_u8(&b, 'C');
    buf_append_u8(&b, 0);
    buf_append_u64(&b, lsn);
    buf_append_u64(&b, lsn + 8);
    buf_append_u64(&b, 0);
    backend_data(c, buf_bytes(&b));
    buf_deinit(&b);
}

void backend_transaction(struct fake_client *c, uint64_t lsn, const char *prefix,
                         struct bytes content)
{
    backend_begin(c, lsn);
    backend_message(c, lsn - 8, prefix, content);
    backend_commit(c, lsn);
}

void backend_hang_up(struct fake_client *c)
{
    client_close(c);
}

/* ---- receiving ---- */

static void take_startup(struct fake_client *c, const char *at, const char *end)
{
    struct buf key = BUF_INIT;

    while (at < end && *at) {
        const char *name = at, *value = name + strlen(name) + 1;

        at = value + strlen(value) + 1;
        if (strcmp(name, "replication") == 0)
            c->replication = strcmp(value, "database") == 0;
        else if (strcmp(name, "application_name") == 0)
            (void)snprintf(c->application, sizeof c->application, "%s", value);
    }
    c->started = true;
    if (c->server->mute)
        return;
    if (c->server->refuse) {
        backend_error(c, false, "FATAL", c->server->refuse, "refused");
        client_close(c);
        return;
    }
    buf_append_u32(&key, 0);
    say(c, 'R', &key); /* AuthenticationOk */
    buf_clear(&key);
    put_text(&key, "server_version");
    put_text(&key, "15.3");
    say(c, 'S', &key);
    buf_clear(&key);
    buf_append_u32(&key, (uint32_t)c->pid);
    buf_append_u32(&key, 1);
    say(c, 'K', &key);
    buf_deinit(&key);
    backend_ready(c);
}

static void query(struct fake_client *c, const char *sql)
{
    c->queries++;
    if (c->server->on_query)
        c->server->on_query(c->server->owner, c, sql);
}

/* Bind: portal, statement, formats, then the parameters, of which the first is kept. */
static void take_bind(struct fake_client *c, const char *body)
{
    const uint8_t *at = (const uint8_t *)body;

    at += strlen((const char *)at) + 1;
    at += strlen((const char *)at) + 1;
    at += 2 + 2 * (size_t)bytes_get_u16(at);
    buf_clear(&c->param);
    if (bytes_get_u16(at) > 0)
        buf_append(&c->param, at + 6, bytes_get_u32(at + 2));
}

static void take(struct fake_client *c, char type, const char *body, size_t size)
{
    switch (type) {
    case 'Q':
        query(c, body);
        break;
    case 'P': /* the statement's name, empty, then its text */
        buf_clear(&c->sql);
        buf_append_str(&c->sql, body + strlen(body) + 1);
        break;
    case 'B':
        take_bind(c, body);
        break;
    case 'S': /* Sync: the whole is there */
        say_empty(c, '1');
        say_empty(c, '2');
        query(c, buf_str(&c->sql));
        break;
    case 'd':
        c->copied += size;
        if (size == 34 && body[0] == 'r') {
            c->reports++;
            c->flushed = bytes_get_u64((const uint8_t *)body + 9);
        }
        break;
    case 'X':
        client_close(c);
        break;
    default: /* Describe, Execute: their answers go without saying */
        break;
    }
}

/* Takes one message out of the input; false when none is whole. */
static bool client_next(struct fake_client *c)
{
    size_t head = c->started ? 5 : 4;

    if (c->fd < 0 || c->in.size < head)
        return false;
    size_t size = bytes_get_u32(c->in.data + head - 4) + head - 4;
    if (c->in.size < size)
        return false;
    const char *body = (const char *)c->in.data + head;
    if (c->started) {
        /* texts in it end in a NUL of their own */
        take(c, (char)c->in.data[0], body, size - head);
    } else {
        ck_assert_uint_eq(bytes_get_u32(c->in.data + 4), STARTUP_CODE);
        take_startup(c, body + 4, (const char *)c->in.data + size);
    }
    memmove(c->in.data, c->in.data + size, c->in.size - size);
    c->in.size -= size;
    return true;
}

static void client_on_poll(uv_poll_t *poll, int status, int events)
{
    struct fake_client *c = poll->data;

    if (status < 0) { /* reset: the other end closed with something unread */
        client_close(c);
        return;
    }
    if (events & UV_WRITABLE)
        client_write(c);
    if (c->fd < 0 || !(events & UV_READABLE))
        return;
    uint8_t *place = buf_reserve(&c->in, 65536);
    ck_assert_ptr_nonnull(place);
    ssize_t n = recv(c->fd, place, 65536, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        client_close(c);
        return;
    }
    c->in.size += (size_t)n;
    while (client_next(c))
        ;
}

static void client_watch(struct fake_client *c)
{
    if (c->fd >= 0)
        (void)uv_poll_start(&c->poll,
                            (c->server->deaf ? 0 : UV_READABLE | UV_DISCONNECT) |
                                (c->out.size ? UV_WRITABLE : 0),
                            client_on_poll);
}

/* ---- life ---- */

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct fake_backend *f = poll->data;
    int fd = accept4(f->fd, NULL, NULL, SOCK_CLOEXEC);

    (void)events;
    ck_assert_int_eq(status, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_uint_lt(f->n, BACKEND_CLIENTS_MAX);
    struct fake_client *c = &f->clients[f->n];
    *c = (struct fake_client){.server = f, .fd = fd, .pid = 1000 + (int)f->n++};
    ck_assert_int_eq(uv_poll_init(&f->loop, &c->poll, fd), 0);
    c->poll.data = c;
    client_watch(c);
}

static void on_tick(uv_timer_t *timer)
{
    struct fake_backend *f = timer->data;

    for (unsigned i = 0; i < f->n; i++) /* `deaf` may have changed */
        client_watch(&f->clients[i]);
}

void backend_init(struct fake_backend *f,
                  void (*on_query)(void *owner, struct fake_client *c, const char *sql),
                  void *owner)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    *f = (struct fake_backend){.on_query = on_query, .owner = owner};
    (void)snprintf(f->folder, sizeof f->folder, "/tmp/walbus-fake-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(f->folder));
    (void)snprintf(f->dsn, sizeof f->dsn, "host=%s port=5432 dbname=d user=u sslmode=disable",
                   f->folder);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s/.s.PGSQL.5432", f->folder);
    f->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(f->fd, 0);
    ck_assert_int_eq(bind(f->fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(f->fd, 16), 0);
    ck_assert_int_eq(uv_loop_init(&f->loop), 0);
    ck_assert_int_eq(uv_poll_init(&f->loop, &f->poll, f->fd), 0);
    ck_assert_int_eq(uv_timer_init(&f->loop, &f->tick), 0);
    f->poll.data = f;
    f->tick.data = f;
    ck_assert_int_eq(uv_poll_start(&f->poll, UV_READABLE, on_connection), 0);
    ck_assert_int_eq(uv_timer_start(&f->tick, on_tick, 5, 5), 0);
}

void backend_deinit(struct fake_backend *f)
{
    char path[128];

    uv_close((uv_handle_t *)&f->tick, NULL);
    uv_close((uv_handle_t *)&f->poll, NULL);
    for (unsigned i = 0; i < f->n; i++) {
        client_close(&f->clients[i]);
        buf_deinit(&f->clients[i].in);
        buf_deinit(&f->clients[i].out);
        buf_deinit(&f->clients[i].sql);
        buf_deinit(&f->clients[i].param);
    }
    ck_assert_int_eq(uv_run(&f->loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&f->loop), 0);
    ck_assert_int_eq(close(f->fd), 0);
    (void)snprintf(path, sizeof path, "%s/.s.PGSQL.5432", f->folder);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(f->folder), 0);
}

void backend_turn(struct fake_backend *f)
{
    (void)uv_run(&f->loop, UV_RUN_ONCE);
}

void backend_run_ms(struct fake_backend *f, unsigned ms)
{
    uint64_t end = clock_monotonic_ns() + ms * UINT64_C(1000000);

    while (clock_monotonic_ns() < end)
        backend_turn(f);
}

uint64_t backend_patience_ns(void)
{
    const char *fork = getenv("CK_FORK");

    return fork && strcmp(fork, "no") == 0 ? UINT64_C(100000000000) : UINT64_C(10000000000);
}

/* libuv opens descriptors of its own for good with the first loop: before a test counts them. */
__attribute__((constructor)) static void open_libuv(void)
{
    uv_loop_t loop;

    if (uv_loop_init(&loop) < 0 || uv_loop_close(&loop) < 0)
        abort();
}
