/* SPDX-License-Identifier: PostgreSQL */
#include "input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unit.h"

/* `content` on stdin for the rest of this test's process. */
static void put_on_stdin(struct bytes content)
{
    char *path = unit_temp_file(content);
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(dup2(fd, STDIN_FILENO), STDIN_FILENO);
    ck_assert_int_eq(close(fd), 0);
    ck_assert_int_eq(unlink(path), 0);
    free(path);
}

START_TEST(operand_is_itself_a_file_or_stdin)
{
    struct buf out = BUF_INIT;
    char operand[64];
    char *path = unit_temp_file((struct bytes){(const uint8_t *)"a\0b\n", 4});

    ck_assert_int_eq(input_read_operand("{\"a\":1}", &out), 0);
    unit_assert_text(buf_bytes(&out), "{\"a\":1}");
    ck_assert_str_eq(input_operand_name("{}"), "DATA");

    buf_clear(&out);
    (void)snprintf(operand, sizeof operand, "@%s", path);
    ck_assert_int_eq(input_read_operand(operand, &out), 0);
    unit_assert_hex(buf_bytes(&out), "6100620a");
    ck_assert_str_eq(input_operand_name(operand), path);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(input_read_operand(operand, &out), -ENOENT);
    ck_assert_int_eq(input_read_operand("@/", &out), -EISDIR);

    buf_clear(&out);
    put_on_stdin(unit_bytes("from stdin\n"));
    ck_assert_int_eq(input_read_operand("-", &out), 0);
    unit_assert_text(buf_bytes(&out), "from stdin\n");
    ck_assert_str_eq(input_operand_name("-"), "stdin");
    free(path);
    buf_deinit(&out);
}
END_TEST

/* Lines that end inside a block, at its end, beyond it, and at the end of the input. */
START_TEST(lines_are_cut_at_any_length)
{
    static struct input in; /* its block is too large for the stack of a small thread */
    const size_t block = sizeof in.block;
    const size_t sizes[] = {0, 1, block - 4, 0, 2 * block, block - 1, block, 3};
    struct buf all = BUF_INIT, line = BUF_INIT;

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        for (size_t k = 0; k < sizes[i]; k++)
            buf_append_u8(&all, (uint8_t)('a' + i));
        if (i + 1 < ARRAY_SIZE(sizes))
            buf_append_u8(&all, '\n');
    }
    put_on_stdin(buf_bytes(&all));
    in = (struct input){.fd = STDIN_FILENO};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        buf_clear(&line);
        ck_assert_int_eq(input_take(&in, '\n', &line), 1);
        ck_assert_msg(line.size == sizes[i], "line %zu: %zu bytes", i, line.size);
        for (size_t k = 0; k < line.size; k++)
            ck_assert_int_eq(line.data[k], 'a' + (int)i);
    }
    ck_assert_int_eq(input_take(&in, '\n', &line), 0);
    buf_deinit(&all);
    buf_deinit(&line);
}
END_TEST

START_TEST(last_line_needs_no_newline_and_an_empty_one_is_one)
{
    static struct input in;
    struct buf line = BUF_INIT;

    put_on_stdin(unit_bytes("\n"));
    in = (struct input){.fd = STDIN_FILENO};
    ck_assert_int_eq(input_take(&in, '\n', &line), 1);
    ck_assert_uint_eq(line.size, 0);
    ck_assert_int_eq(input_take(&in, '\n', &line), 0);

    in = (struct input){.fd = -1};
    ck_assert_int_eq(input_take(&in, '\n', &line), -EBADF);
    buf_deinit(&line);
}
END_TEST

UNIT_MAIN("input", operand_is_itself_a_file_or_stdin, lines_are_cut_at_any_length,
          last_line_needs_no_newline_and_an_empty_one_is_one)
