# Sourced by tests/run and tests/support/e2e.sh.
#
#   choice N TEXT            prints a number below N that TEXT and the commit choose
choice() { echo $(($(cksum <<<"$2 ${chosen_by:=$(git rev-parse HEAD 2>/dev/null || echo 1)}" | cut -d ' ' -f 1) % $1)); }
