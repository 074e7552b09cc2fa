/* SPDX-License-Identifier: PostgreSQL */
#include "pg/emit.h"

#include <assert.h>
#include <errno.h>
#include <libpq-fe.h>

/* Object ids of types are the same in every PostgreSQL: src/include/catalog/pg_type.dat. */
enum {
    OID_BOOL = 16,
    OID_BYTEA = 17,
    OID_TEXT = 25,
    OID_BOOL_ARRAY = 1000,
    OID_BYTEA_ARRAY = 1001,
    OID_TEXT_ARRAY = 1009,
    OID_PG_LSN = 3220,
};

#define EMIT "SELECT pg_catalog.pg_logical_emit_message"

static const char sql_one[] = EMIT "($1, $2, $3)";
static const char sql_one_flush[] = EMIT "($1, $2, $3, true)";
static const char sql_many[] =
    EMIT "($1, m.prefix, m.content) FROM (SELECT pg_catalog.unnest($2) AS prefix,"
         " pg_catalog.unnest($3) AS content) AS m";
static const char sql_many_flush[] =
    EMIT "($1, m.prefix, m.content, m.flush) FROM (SELECT pg_catalog.unnest($2) AS prefix,"
         " pg_catalog.unnest($3) AS content, pg_catalog.unnest($4) AS flush) AS m";

/* ---- arrays ---- */

/* Head, array_recv in src/backend/utils/adt/arrayfuncs.c: dimensions, whether there are NULLs, the
 * elements' type, then of each dimension its length and lower bound; then each element's length and
 * bytes. */
enum { ARRAY_N_AT = 12 };

void emit_array_init(struct emit_array *array, uint32_t element_oid)
{
    *array = (struct emit_array){.buf = BUF_INIT};
    buf_append_u32(&array->buf, 1);
    buf_append_u32(&array->buf, 0);
    buf_append_u32(&array->buf, element_oid);
    buf_append_u32(&array->buf, 0);
    buf_append_u32(&array->buf, 1);
}

void emit_array_open(struct emit_array *array)
{
    buf_append_u32(&array->buf, 0);
    array->item = array->buf.size;
    array->n++;
}

int emit_array_close(struct emit_array *array)
{
    if (array->buf.failed)
        return 0; /* asked for once, at the end */
    size_t size = array->buf.size - array->item;
    if (size > EMIT_STATEMENT_MAX)
        return -E2BIG;
    bytes_put_u32(array->buf.data + array->item - 4, (uint32_t)size);
    return 0;
}

struct bytes emit_array_finish(struct emit_array *array)
{
    assert(array->n > 0);
    if (!array->buf.failed)
        bytes_put_u32(array->buf.data + ARRAY_N_AT, array->n);
    return buf_bytes(&array->buf);
}

size_t emit_array_server_size(const struct emit_array *array)
{
    /* In the server an element has a head of 4 bytes, as here, and is aligned to 4. */
    return array->buf.size + (size_t)array->n * 3;
}

/* ---- statements ---- */

static void put_param(struct emit_statement *s, unsigned type, struct bytes value)
{
    /* A NULL pointer would be SQL's NULL, and emitting with a NULL does nothing at all. */
    s->values[s->n] = value.data ? (const char *)value.data : "";
    s->lengths[s->n] = (int)value.size;
    s->formats[s->n] = 1;
    s->types[s->n] = type;
    s->n++;
}

static void put_transactional(struct emit_statement *s, bool transactional)
{
    static const uint8_t no = 0, yes = 1;

    put_param(s, OID_BOOL, (struct bytes){transactional ? &yes : &no, 1});
}

static bool asks_flush(int server_version, bool transactional)
{
    return !transactional && server_version >= EMIT_FLUSH_SERVER;
}

int emit_one(struct emit_statement *ret, int server_version, bool transactional,
             struct bytes prefix, struct bytes content)
{
    if (content.size > EMIT_STATEMENT_MAX || prefix.size > EMIT_STATEMENT_MAX - content.size)
        return -E2BIG;
    *ret = (struct emit_statement){.sql = asks_flush(server_version, transactional) ? sql_one_flush
                                                                                    : sql_one};
    put_transactional(ret, transactional);
    put_param(ret, OID_TEXT, prefix);
    put_param(ret, OID_BYTEA, content);
    return 0;
}

void emit_batch_init(struct emit_batch *batch)
{
    emit_array_init(&batch->prefixes, OID_TEXT);
    emit_array_init(&batch->contents, OID_BYTEA);
    emit_array_init(&batch->flushes, OID_BOOL);
}

void emit_batch_deinit(struct emit_batch *batch)
{
    buf_deinit(&batch->prefixes.buf);
    buf_deinit(&batch->contents.buf);
    buf_deinit(&batch->flushes.buf);
}

static size_t batch_size(const struct emit_batch *batch)
{
    /* Each is below EMIT_STATEMENT_MAX and one more item, so this cannot overflow. */
    return emit_array_server_size(&batch->prefixes) + emit_array_server_size(&batch->contents) +
           emit_array_server_size(&batch->flushes);
}

struct buf *emit_batch_begin(struct emit_batch *batch, struct bytes prefix)
{
    emit_array_open(&batch->prefixes);
    buf_append(&batch->prefixes.buf, prefix.data, prefix.size);
    emit_array_open(&batch->contents);
    return &batch->contents.buf;
}

int emit_batch_end(struct emit_batch *batch)
{
    int rc = emit_array_close(&batch->prefixes);

    if (rc == 0)
        rc = emit_array_close(&batch->contents);
    if (rc < 0)
        return rc;
    if (batch->prefixes.buf.failed || batch->contents.buf.failed)
        return -ENOMEM;
    return batch_size(batch) > EMIT_STATEMENT_MAX ? -E2BIG : 0;
}

static int put_flushes(struct emit_batch *batch)
{
    for (uint32_t i = 0; i < batch->contents.n; i++) {
        emit_array_open(&batch->flushes);
        buf_append_u8(&batch->flushes.buf, i + 1 == batch->contents.n);
        int rc = emit_array_close(&batch->flushes);
        if (rc < 0)
            return rc;
    }
    if (batch->flushes.buf.failed)
        return -ENOMEM;
    return batch_size(batch) > EMIT_STATEMENT_MAX ? -E2BIG : 0;
}

static struct bytes last_element(const struct emit_array *array)
{
    return (struct bytes){array->buf.data + array->item, array->buf.size - array->item};
}

int emit_many(struct emit_statement *ret, int server_version, bool transactional,
              struct emit_batch *batch)
{
    bool flush = asks_flush(server_version, transactional);

    if (batch->contents.n == 1)
        return emit_one(ret, server_version, transactional, last_element(&batch->prefixes),
                        last_element(&batch->contents));
    if (flush) {
        int rc = put_flushes(batch);
        if (rc < 0)
            return rc;
    }
    *ret = (struct emit_statement){.sql = flush ? sql_many_flush : sql_many};
    put_transactional(ret, transactional);
    put_param(ret, OID_TEXT_ARRAY, emit_array_finish(&batch->prefixes));
    put_param(ret, OID_BYTEA_ARRAY, emit_array_finish(&batch->contents));
    if (flush)
        put_param(ret, OID_BOOL_ARRAY, emit_array_finish(&batch->flushes));
    return 0;
}

bool emit_send(struct pg_conn *conn, const struct emit_statement *s)
{
    return PQsendQueryParams(conn, s->sql, s->n, s->types, s->values, s->lengths, s->formats, 1) ==
           1;
}

struct pg_result *emit_exec(struct pg_conn *conn, const struct emit_statement *s)
{
    return PQexecParams(conn, s->sql, s->n, s->types, s->values, s->lengths, s->formats, 1);
}

int emit_read(const struct pg_result *result, uint64_t *ret, size_t n)
{
    if (PQresultStatus(result) != PGRES_TUPLES_OK || PQnfields(result) != 1 ||
        PQftype(result, 0) != OID_PG_LSN || PQfformat(result, 0) != 1 ||
        (size_t)PQntuples(result) != n)
        return -EBADMSG;
    for (int i = 0; i < (int)n; i++)
        if (PQgetisnull(result, i, 0) || PQgetlength(result, i, 0) != 8)
            return -EBADMSG;
    for (int i = 0; ret && i < (int)n; i++)
        ret[i] = bytes_get_u64((const uint8_t *)PQgetvalue(result, i, 0));
    return 0;
}
