#!/bin/sh
# What a formatter is not needed to see: tabs, spaces at line ends, lines over 100 columns, no newline at
# the end of a file.
cd "$(dirname "$0")/.." || exit 1
LC_ALL=C.UTF-8
export LC_ALL
status=0
files=$(find include src tests examples \( -name '*.[ch]' -o -name '*.cu' -o -name '*.py' \) -type f)
complain() { echo "^ $1"; status=1; }
grep -nE ' +$' $files Makefile scripts/* && complain 'spaces at the end of a line'
grep -n "$(printf '\t')" $files && complain 'a tab'
grep -nE '^.{101}' $(find include src -name '*.[ch]') && complain 'over 100 columns'
for f in $files; do
    [ -z "$(tail -c 1 "$f")" ] || { echo "$f"; complain 'no newline at the end'; }
done
exit $status
