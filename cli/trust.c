/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/text.h"
#include "codec/cbor.h"
#include "codec/cose_key.h"
#include "codec/subject.h"
#include "codec/trust.h"
#include "codec/trust_edit.h"
#include "file_write.h"
#include "key_operand.h"
#include "keys/trust_file.h"
#include "print.h"

#define NAME "trust"

struct trust_command {
    const char *path;     /* NULL: the setting's */
    const char *audience; /* NULL: not given */
    int64_t max_delay_us; /* 0: not given */
};

static const struct cli_option options[] = {
    {"trust", "FILE", "The trust file (default: the setting trust-file, " TRUST_DEFAULT_PATH ")."},
    {"audience", "TEXT", "With add: what the key's events are signed for besides their prefix."},
    {"max-delay", "TIME", "With add: most time between an event's time and its being received."},
    {NULL, NULL, NULL},
};

static int take_delay(struct trust_command *t, const char *value)
{
    uint64_t us;
    int r = text_parse_duration(value, "s", &us);

    if (r == -EINVAL || (r == 0 && us == 0))
        return cli_usage(NAME, "--max-delay needs a time above 0, as 10min, not '%s'.", value);
    if (r < 0 || us > (uint64_t)TRUST_DELAY_MAX_US)
        return cli_usage(NAME, "--max-delay can be %" PRId64 " days at most, not '%s'.",
                         TRUST_DELAY_MAX_US / INT64_C(86400000000), value);
    t->max_delay_us = (int64_t)us;
    return CLI_OK;
}

static int take_option(void *state, const struct cli_option *option, const char *value)
{
    struct trust_command *t = state;

    if (strcmp(option->name, "max-delay") == 0)
        return take_delay(t, value);
    if (strcmp(option->name, "audience") == 0) {
        const char *fault = trust_audience_fault(bytes_of_text(value));

        t->audience = value;
        return fault ? cli_usage(NAME, "--audience: it %s.", fault) : CLI_OK;
    }
    t->path = value;
    return CLI_OK;
}

/* ---- changing the file ---- */

/* The file that is to be changed, held against others who change it. */
struct held {
    char *path; /* what a symbolic link leads to */
    struct file_lock lock;
    struct file_content content; /* of a file that is not there yet: none */
    struct stat st;
    bool is_new;
};

static void release(struct held *h)
{
    file_write_unlock(&h->lock);
    file_content_deinit(&h->content);
    free(h->path);
}

static int no_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    int size = slash ? (int)(slash - path) : 0;

    return cli_fail(NAME, "There is no folder %.*s for the file: 'install -d %.*s' makes it.", size,
                    path, size, path);
}

static int find_path(const char *path, struct held *h)
{
    h->path = realpath(path, NULL);
    if (h->path)
        return CLI_OK;
    if (errno != ENOENT)
        return cli_fail(NAME, "%s: %s.", path, strerror(errno));
    if (file_write_is_link(path))
        return cli_fail(NAME,
                        "%s is a symbolic link to nothing: make the file that it leads to, or "
                        "remove the link.",
                        path);
    h->is_new = true;
    h->path = strdup(path);
    return h->path ? CLI_OK : cli_fail(NAME, "Not enough memory.");
}

static int hold(const char *path, struct held *h)
{
    char why[FILE_WHY_SIZE];
    int status = find_path(path, h), r;

    if (status != CLI_OK)
        return status;
    r = file_write_lock(h->path, &h->lock);
    if (r == -ENOENT)
        return no_folder(h->path);
    if (r == -EAGAIN)
        return cli_fail(NAME, "Somebody else is changing files in the folder of %s, for some time.",
                        path);
    if (r < 0)
        return cli_fail(NAME, "Cannot lock the folder of %s: %s.", path, strerror(-r));
    r = file_read(h->path, TRUST_TEXT_MAX, FILE_TRUSTED, &h->content, why);
    h->is_new = r == -ENOENT;
    if (h->is_new)
        return CLI_OK;
    if (r < 0)
        return cli_fail(NAME, "%s", why);
    return stat(h->path, &h->st) < 0 ? cli_fail(NAME, "%s: %s.", path, strerror(errno)) : CLI_OK;
}

static struct bytes text_of(const struct held *h)
{
    return h->is_new ? (struct bytes){NULL, 0} : file_bytes(&h->content);
}

static int replace(const struct held *h, const struct buf *text)
{
    int r = text->failed ? -ENOMEM
                         : file_write_replace(h->path, h->is_new ? NULL : &h->st, buf_bytes(text));

    return r < 0 ? cli_fail(NAME, "Cannot write %s: %s.", h->path, strerror(-r)) : CLI_OK;
}

static int edit_failed(const struct held *h, int r, const struct trust_fault *fault)
{
    return r == -ENOMEM ? cli_fail(NAME, "Not enough memory.")
                        : cli_fail(NAME, "%s: %s", h->path, fault->why);
}

static void tell(const char *done, struct bytes kid, const char *rest)
{
    struct buf line = BUF_INIT;

    buf_printf(&line, "%s ", done);
    text_put_hex(&line, kid);
    buf_printf(&line, "%s.\n", rest);
    (void)fputs(buf_str(&line), stdout);
    buf_deinit(&line);
}

/* ---- add ---- */

static int check_pattern(const char *text)
{
    struct bytes pattern = bytes_of_text(text), token;
    const char *fault = trust_pattern_fault(pattern), *oddity;

    if (fault)
        return cli_usage(NAME, "The pattern '%s' %s.", text, fault);
    if (strcmp(text, "*") == 0)
        (void)cli_fail(NAME, "pattern '*': it stands for one token, so for prefixes without a dot; "
                             "'>' is every prefix.");
    else if ((oddity = subject_pattern_oddity(pattern, &token)))
        (void)cli_fail(NAME, "pattern '%s': '%.*s' %s", text, (int)token.size,
                       token.size ? (const char *)token.data : "", oddity);
    return CLI_OK;
}

static int add_to(struct cli *cli, const struct held *h, const struct trust_edit_entry *entry)
{
    struct buf text = BUF_INIT;
    struct trust_fault fault;
    enum trust_edit_done done;
    int r = trust_edit_add(text_of(h), entry, &text, &done, &fault);
    int status = r < 0 ? edit_failed(h, r, &fault) : CLI_OK;

    if (status == CLI_OK && done != TRUST_EDIT_NOTHING) {
        cli_begin_change(cli, done == TRUST_EDIT_ADDED ? "Added" : "Changed");
        status = replace(h, &text);
    }
    if (status == CLI_OK) {
        struct bytes kid = cose_key_kid(&entry->key);

        if (done == TRUST_EDIT_NOTHING)
            tell("Nothing to do:", kid, " is trusted with that already");
        else
            tell(done == TRUST_EDIT_ADDED ? "Added" : "Changed", kid, "");
    }
    buf_deinit(&text);
    return status;
}

static int add(struct cli *cli, const struct trust_command *t, const char *path, int argc,
               char **argv)
{
    const struct bytes audience = bytes_of_text(t->audience);
    struct trust_edit_entry entry = {
        .audience = t->audience ? &audience : NULL,
        .max_delay_us = t->max_delay_us,
    };
    struct held h = {.lock = FILE_LOCK_INIT};
    struct bytes *patterns;
    int status = CLI_OK;

    if (argc < 1)
        return cli_usage(NAME, "add needs the file of a public key, and patterns.");
    if (argc < 2)
        return cli_usage(NAME, "add needs a pattern: for which prefixes the key may sign; %s.",
                         cli_shell_hint);
    for (int i = 1; i < argc && status == CLI_OK; i++)
        status = check_pattern(argv[i]);
    if (status == CLI_OK)
        status = key_operand_public(NAME, argv[0], &entry.key);
    if (status != CLI_OK)
        return status;
    patterns = calloc((size_t)argc, sizeof *patterns);
    if (!patterns)
        return cli_fail(NAME, "Not enough memory.");
    for (int i = 1; i < argc; i++)
        patterns[entry.n_patterns++] = bytes_of_text(argv[i]);
    entry.patterns = patterns;
    status = hold(path, &h);
    if (status == CLI_OK)
        status = add_to(cli, &h, &entry);
    release(&h);
    free(patterns);
    return status;
}

/* ---- rm ---- */

static int take_kid(const char *text, uint8_t out[COSE_KEY_KID_MAX], struct bytes *ret)
{
    uint8_t size;

    if (!trust_kid_parse(bytes_of_text(text), out, &size)) {
        char hex[2 * COSE_KEY_KID_MAX + 1];
        size_t length = strlen(text);

        if (length == 0 || length > COSE_KEY_KID_MAX)
            return cli_usage(NAME, "'%s' is no key's id: that is written in pairs of hexadecimal digits.", text);
        return cli_usage(NAME,
                         "'%s' is no key's id: that is written in pairs of hexadecimal digits. What keygen made with "
                         "--kid '%s' is %s.",
                         text, text, text_hex((const uint8_t *)text, length, hex));
    }
    *ret = (struct bytes){out, size};
    return CLI_OK;
}

static int rm(struct cli *cli, const char *path, int argc, char **argv)
{
    struct held h = {.lock = FILE_LOCK_INIT};
    struct buf text = BUF_INIT;
    struct trust_fault fault;
    uint8_t room[COSE_KEY_KID_MAX];
    struct bytes kid;

    if (argc != 1)
        return cli_usage(NAME, "rm needs one key's id, as list shows it.");
    int status = take_kid(argv[0], room, &kid);

    if (status == CLI_OK)
        status = hold(path, &h);
    if (status == CLI_OK) {
        int r = trust_edit_remove(text_of(&h), kid, &text, &fault);

        if (r == -ENOENT)
            status = cli_fail(NAME, "There is no key %s in %s.", argv[0], path);
        else if (r < 0)
            status = edit_failed(&h, r, &fault);
    }
    if (status == CLI_OK) {
        cli_begin_change(cli, "Removed");
        status = replace(&h, &text);
    }
    if (status == CLI_OK)
        tell("Removed", kid, "");
    buf_deinit(&text);
    release(&h);
    return status;
}

/* ---- list ---- */

static void put_key_json(struct buf *out, const struct trust_key *key)
{
    uint8_t encoded[COSE_KEY_PUBLIC_ENCODED_MAX];

    buf_append_str(out, "{\"kid\":\"");
    text_put_hex(out, cose_key_kid(&key->key));
    buf_append_str(out, "\",\"key\":\"");
    print_base64(out, (struct bytes){encoded, cose_key_encode_public(&key->key, encoded)});
    buf_append_str(out, "\",\"allow\":[");
    for (size_t i = 0; i < key->n_allow; i++) {
        if (i > 0)
            buf_append_u8(out, ',');
        json_put_string(out, key->allow[i].text);
    }
    buf_append_u8(out, ']');
    if (key->has_audience) {
        buf_append_str(out, ",\"audience\":");
        json_put_string(out, key->audience);
    }
    if (key->max_delay_us > 0)
        buf_printf(out, ",\"max_delay_seconds\":%" PRId64 ".%06" PRId64,
                   key->max_delay_us / 1000000, key->max_delay_us % 1000000);
    buf_append_u8(out, '}');
}

/* The id, then what is to be known below it: ids and patterns have any length. */
static void put_key(struct buf *out, const struct trust_key *key)
{
    text_put_hex(out, cose_key_kid(&key->key));
    buf_append_u8(out, '\n');
    for (size_t i = 0; i < key->n_allow; i++) {
        buf_append_str(out, "  allow ");
        text_put_visible(out, key->allow[i].text);
        buf_append_u8(out, '\n');
    }
    if (key->has_audience) {
        buf_append_str(out, "  audience \"");
        text_put_visible(out, key->audience);
        buf_append_str(out, "\"\n");
    }
    if (key->max_delay_us > 0) {
        buf_append_str(out, "  max-delay ");
        text_put_duration(out, (uint64_t)key->max_delay_us);
        buf_append_u8(out, '\n');
    }
}

static void put_list(const struct cli *cli, const struct trust *trust, struct buf *out)
{
    for (size_t i = 0; i < trust_count(trust); i++) {
        if (cli->json) {
            buf_append_u8(out, i == 0 ? '[' : ',');
            put_key_json(out, trust_at(trust, i));
        } else {
            put_key(out, trust_at(trust, i));
        }
    }
    if (cli->json)
        buf_append_str(out, trust_count(trust) == 0 ? "[]\n" : "]\n");
    else if (trust_count(trust) == 0)
        (void)fputs("No key is trusted.\n", stderr);
}

static int list(const struct cli *cli, const char *path, int argc)
{
    char why[TRUST_FILE_WHY_SIZE];
    struct buf out = BUF_INIT;
    struct trust *trust;
    int status = CLI_OK;

    if (argc > 0)
        return cli_usage(NAME, "list takes no operand.");
    int r = trust_file_read(path, &trust, why);
    if (r == -ENOENT)
        return cli_fail(NAME, "There is no trust file %s; 'walbus trust add' makes it.", path);
    if (r < 0)
        return cli_fail(NAME, "%s", why);
    put_list(cli, trust, &out);
    (void)trust_free(trust);
    if (out.failed)
        status = cli_fail(NAME, "Not enough memory.");
    else if (out.size > 0 && fwrite(out.data, 1, out.size, stdout) != out.size)
        status = cli_fail(NAME, "Cannot write to standard output: %s.", strerror(errno));
    buf_deinit(&out);
    return status;
}

/* ---- the command ---- */

static int run(struct cli *cli, void *state, int argc, char **argv)
{
    const struct trust_command *t = state;
    const char *path = t->path ? t->path : cli->settings.trust_file;

    if (argc < 1)
        return cli_usage(NAME, "What is to be done is missing: add, rm or list.");
    if (*path == '\0' || strcmp(path, "-") == 0)
        return cli_usage(NAME, "--trust: '%s' is no file's name.", path);
    if (strcmp(argv[0], "add") == 0)
        return add(cli, t, path, argc - 1, argv + 1);
    if (t->audience || t->max_delay_us > 0)
        return cli_usage(NAME, "--audience and --max-delay go with add.");
    if (strcmp(argv[0], "rm") == 0)
        return rm(cli, path, argc - 1, argv + 1);
    if (strcmp(argv[0], "list") == 0)
        return list(cli, path, argc - 1);
    return cli_usage(NAME, "There is nothing to be done with '%s'; there is add, rm and list.",
                     argv[0]);
}

const struct cli_command cli_command_trust = {
    .name = NAME,
    .usage = "[OPTION...] add KEYFILE PATTERN... | rm KID | list",
    .sentence = "Change or show which keys are believed, and for which prefixes.",
    .details =
        "The trust file has a section for each key: its id, the public key, the patterns of the\n"
        "prefixes that it may sign, perhaps an audience and a max-delay. Comments and what else\n"
        "stands there are kept.\n"
        "\n"
        "add puts a key into it, or further patterns to a key that is there; KEYFILE is the "
        "public\n"
        "one. Several keys may sign for one prefix, so that a new one can be added, used, and "
        "then\n"
        "the old one removed. rm takes a key away by its id. Subscribers read a changed file by\n"
        "themselves, the router when it is told to reload.\n"
        "\n"
        "Examples:\n"
        "  walbus trust add orders.key.pub 'orders.>'\n"
        "  walbus trust --trust ./trust add orders.key.pub 'orders.*' --audience staging\n"
        "  walbus trust rm 866eefbd6718c884\n"
        "  walbus trust list --json",
    .options = options,
    .option = take_option,
    .common = cli_common_none,
    .run = run,
    .state_size = sizeof(struct trust_command),
    .lists = true,
};
