# Shell functions for the test of the book's commands, which `cargo xtask book` writes behind this.
#
# /tmp/block has the commands of a block, each preceded by what shows it. What it prints is kept in /results/book, to be compared
# with what the page shows, and goes into the transcript.

mkdir -p /results/book
transcript=/results/transcript.txt

# tell: text on standard input goes to the output and into the transcript.
tell() { tee -a "$transcript"; }

# page NAME: its commands follow.
page() {
    page_began=$(now)
    echo "==== $1" | tell
}

# block PLACE
block() {
    block_began=$(now)
    check "$1" sh /tmp/block
    show "$1"
}

# show PLACE: $lab_output is what the block printed.
show() {
    echo "$lab_output" >"/results/book/$1"
    { echo "$lab_output"; echo "-- $(seconds_since "$block_began") s"; } | tell
}

# in_terminal PLACE TEXT: the block runs in a terminal until that shows TEXT; then Ctrl-] is typed. Where the lab's guest is not
# the one that the page is about, $console_says has what it says instead.
in_terminal() {
    block_began=$(now)
    rm -f /tmp/keys /tmp/left
    mkfifo /tmp/keys
    { script -q -f -c "sh /tmp/block" /tmp/typescript && touch /tmp/left; } </tmp/keys >/dev/null 2>&1 &
    exec 9>/tmp/keys
    check "$1" wait_for "grep -q -- '${console_says:-$2}' /tmp/typescript" 1500
    printf '\035' >&9
    check "$1: Ctrl-] leaves it" wait_for "[ -e /tmp/left ]" 30
    exec 9>&-
    lab_output=$(tr -d '\r' </tmp/typescript | grep -a -v '^Script \(started\|done\) ' | shorter)
    show "$1"
}

# shorter: of many lines the first and the last ones.
shorter() { awk '{ line[NR] = $0 } END { for (i = 1; i <= NR; i++) if (i <= 3 || i > NR - 12) print line[i]; else if (i == 4) print "..." }'; }

# reached WHAT: how long it took since the page's first command.
reached() { echo "==== $1: $(seconds_since "$page_began") s after the page's first command, on an emulated host" | tell; }
