# SPDX-License-Identifier: PostgreSQL
"""What the integration tests stand on: servers, routers, commands, and a protocol client of their own.

Nothing here links or loads walbus: the programs are run as a user runs them, and the subscriber speaks the
protocol from its description, so that an error that both ends of the C code share is still seen.
"""
