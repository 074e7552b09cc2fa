/* SPDX-License-Identifier: PostgreSQL */
#include "base/buf.h"

#include <string.h>

#include "unit.h"

START_TEST(bytes_big_endian)
{
    uint8_t raw[8];

    bytes_put_u64(raw, 0x0102030405060708);
    unit_assert_hex((struct bytes){raw, 8}, "0102030405060708");
    ck_assert_uint_eq(bytes_get_u64(raw), 0x0102030405060708);
    ck_assert_uint_eq(bytes_get_u32(raw + 4), 0x05060708);
    ck_assert_uint_eq(bytes_get_u16(raw + 6), 0x0708);
    memset(raw, 0xff, sizeof raw);
    ck_assert_uint_eq(bytes_get_u64(raw), UINT64_MAX);
    ck_assert_uint_eq(bytes_get_u32(raw), UINT32_MAX);
    ck_assert_uint_eq(bytes_get_u16(raw), UINT16_MAX);
    bytes_put_u16(raw, 0x8001);
    unit_assert_hex((struct bytes){raw, 3}, "8001ff");
}
END_TEST

START_TEST(bytes_equal_compares_all)
{
    ck_assert(bytes_equal((struct bytes){NULL, 0}, unit_bytes("")));
    ck_assert(bytes_equal(unit_bytes("ab"), unit_bytes("ab")));
    ck_assert(!bytes_equal(unit_bytes("ab"), unit_bytes("ac")));
    ck_assert(!bytes_equal(unit_bytes("ab"), unit_bytes("a")));
    ck_assert(!bytes_equal(unit_bytes(""), unit_bytes("a")));
    ck_assert(bytes_equal(bytes_of_text("ab"), unit_bytes("ab")));
    ck_assert_uint_eq(bytes_of_text(NULL).size, 0);
}
END_TEST

START_TEST(buf_builds)
{
    struct buf b = BUF_INIT;

    ck_assert_str_eq(buf_str(&b), "");
    buf_append(&b, NULL, 0);
    ck_assert_uint_eq(b.size, 0);
    buf_append_u8(&b, 0x01);
    buf_append_u16(&b, 0x0203);
    buf_append_u32(&b, 0x04050607);
    buf_append_u64(&b, 0x08090a0b0c0d0e0f);
    unit_assert_hex(buf_bytes(&b), "010203 04050607 08090a0b0c0d0e0f");
    buf_clear(&b);
    buf_append_str(&b, "x=");
    buf_printf(&b, "%d %s", -7, "seven");
    ck_assert_str_eq(buf_str(&b), "x=-7 seven");
    ck_assert_uint_eq(b.size, 10);
    ck_assert(!b.failed);
    buf_deinit(&b);
    ck_assert_ptr_null(b.data);
    ck_assert_uint_eq(b.cap, 0);
}
END_TEST

START_TEST(buf_grows_over_every_size)
{
    struct buf b = BUF_INIT;

    for (size_t i = 0; i < 1000; i++) {
        ck_assert_uint_eq(b.size, i);
        buf_printf(&b, "%c", (int)('a' + i % 26));
    }
    for (size_t i = 0; i < 1000; i++)
        if (b.data[i] != 'a' + i % 26)
            ck_abort_msg("byte %zu is %u", i, b.data[i]);
    buf_deinit(&b);
}
END_TEST

START_TEST(buf_failure_latches)
{
    struct buf b = BUF_INIT;

    buf_append_str(&b, "something");
    ck_assert_ptr_null(buf_reserve(&b, SIZE_MAX - 4));
    ck_assert(b.failed);
    ck_assert_uint_eq(b.size, 0);
    buf_append_str(&b, "more");
    buf_printf(&b, "%d", 1);
    ck_assert_uint_eq(b.size, 0);
    ck_assert_str_eq(buf_str(&b), "");
    buf_clear(&b);
    buf_append_str(&b, "again");
    ck_assert_str_eq(buf_str(&b), "again");
    buf_deinit(&b);
}
END_TEST

UNIT_MAIN("buf", bytes_big_endian, bytes_equal_compares_all, buf_builds, buf_grows_over_every_size,
          buf_failure_latches)
