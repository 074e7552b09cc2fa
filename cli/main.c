/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

static const struct cli_command *const commands[] = {
    &cli_command_setup,
    &cli_command_teardown,
    &cli_command_tail,
    &cli_command_publish,
    &cli_command_subscriptions,
    &cli_command_status,
    &cli_command_quarantine,
    &cli_command_reload,
    &cli_command_keygen,
    &cli_command_trust,
    &cli_command_verify,
    &cli_command_inspect,
    &cli_command_dev,
    NULL,
};

int main(int argc, char **argv)
{
    return cli_main(commands, argc, argv);
}
