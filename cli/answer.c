/* SPDX-License-Identifier: PostgreSQL */
#include "answer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "settings/setting_place.h"

/** A router that has not answered by then is counted as not reachable. */
#define ANSWER_MS 10000

int answer_place(const struct cli *cli, char **ret, char why[ANSWER_WHY_SIZE])
{
    struct stat st;
    char *path;
    int rc = socket_place_of_client(cli->settings.socket, &path, why);

    if (rc == -EINVAL)
        setting_place_blame(&cli->settings, settings_find("socket"), 0, why);
    if (rc < 0)
        return rc;
    /* connect() would give the errno of a router that has ended, or of a socket that is for others */
    if (stat(path, &st) == 0 && !S_ISSOCK(st.st_mode)) {
        (void)snprintf(why, ANSWER_WHY_SIZE, "Cannot reach the router at %s: that is no socket.", path);
        free(path);
        return -ENOENT;
    }
    *ret = path;
    return 0;
}

static int say_refused(const char *command, const char *code, const char *sentence)
{
    return cli_fail(command, *code ? "%s (%s)" : "%s", sentence, code);
}

int answer_ask(struct cli *cli, const char *command, const char *what, struct bytes args,
               int (*refused)(void *context, const char *code, const char *sentence), void *context,
               struct walbus_reply **ret)
{
    char why[ANSWER_WHY_SIZE], *path;
    int rc = answer_place(cli, &path, why);

    if (rc == -ENOENT)
        return cli_unreachable(command, "%s", why);
    if (rc == -EINVAL)
        return cli_usage(command, "%s", why);
    if (rc < 0)
        return cli_fail(command, "%s.", strerror(-rc));

    struct walbus_reply *reply = NULL;
    enum walbus_result result = walbus_request(path, what, args.data, args.size, ANSWER_MS, &reply);
    const char *sentence = walbus_reply_error(reply), *code = walbus_reply_error_code(reply);
    int status = CLI_OK;
    if (result == WALBUS_NO_MEMORY)
        status = cli_fail(command, "%s.", walbus_result_text(result));
    else if (result == WALBUS_TIMEOUT && cli->done)
        status = cli_unreachable(command, "%s What was asked for may be done all the same, or soon be.", sentence);
    else if (result == WALBUS_NO_ROUTER || result == WALBUS_TIMEOUT)
        status = cli_unreachable(command, "%s", sentence);
    else if (result == WALBUS_REFUSED && refused)
        status = refused(context, code, sentence);
    else if (result != WALBUS_OK)
        status = say_refused(command, code, sentence);
    free(path);
    if (result == WALBUS_OK)
        *ret = reply;
    else
        walbus_reply_free(reply);
    return status;
}

struct bytes answer_of(const struct walbus_reply *reply)
{
    struct bytes item;

    item.data = walbus_reply_result(reply, &item.size);
    return item;
}

bool answer_walk_start(struct answer_walk *w, struct bytes item, enum cbor_kind kind)
{
    w->r = cbor_reader_init(item);
    w->is_map = kind == CBOR_MAP;
    w->left = 0;
    return (w->is_map ? cbor_read_map(&w->r, &w->left) : cbor_read_array(&w->r, &w->left)) ==
           CBOR_OK;
}

bool answer_walk_next(struct answer_walk *w, struct bytes *key, struct bytes *value)
{
    if (w->left == 0 || (w->is_map && cbor_read_text(&w->r, key) != CBOR_OK) ||
        cbor_read_item(&w->r, value) != CBOR_OK)
        return false;
    w->left--;
    return true;
}

struct bytes answer_item(struct bytes map, const char *key)
{
    struct bytes name, item;
    struct answer_walk w;

    if (answer_walk_start(&w, map, CBOR_MAP))
        while (answer_walk_next(&w, &name, &item))
            if (bytes_equal(name, bytes_of_text(key)))
                return item;
    return (struct bytes){NULL, 0};
}

struct bytes answer_text(struct bytes map, const char *key)
{
    struct cbor_reader r = cbor_reader_init(answer_item(map, key));
    struct bytes text;

    return r.start && cbor_read_text(&r, &text) == CBOR_OK ? text : (struct bytes){NULL, 0};
}

bool answer_uint(struct bytes map, const char *key, uint64_t *ret)
{
    struct cbor_reader r = cbor_reader_init(answer_item(map, key));

    return r.start && cbor_read_uint(&r, ret) == CBOR_OK;
}
