# lab-addition: hvm
# Memory of Linux guests that may have more than they begin with: what the balloon driver makes of it is what it makes of it
# when xl starts the guest, also after a save and a restore. For instance: lab run memory, or of one kind: memory pvh
. /lab/lib.sh
start_xylemd
mib() { xl list more | awk 'NR == 2 { print $3 }'; }
# told MIB: prints that if the guest has it in time, give or take a MiB, or else what it has then.
told() {
    if wait_for "[ \$(mib) -ge $(($1 - 1)) ] && [ \$(mib) -le $(($1 + 1)) ]" $((patience / 10)); then echo "$1"; else mib; fi
}
# life TOOL: what the guest has after its start, with less, with more than it began with, and with that again.
life() {
    has=$(told 160)
    for target in 128 320 160; do
        $1 mem-set more $target >&2
        has="$has $(told $target)"
    done
    echo "$has"
}
free() { xl info | awk '/^free_memory/ { print $3 }'; }

# one TYPE LINES...
one() {
    kind=$1
    shift
    # Emulated, an HVM guest waits for its device model most of the time: Linux in it takes longer than half an hour.
    patience=600
    [ "$kind" = hvm ] && patience=3000
    echo "== $kind"
    {
        echo "name = 'more'"
        echo "type = '$kind'"
        echo "memory = 160"
        echo "maxmem = 448"
        echo "kernel = '/guest/vmlinuz'"
        echo "ramdisk = '/guest/initramfs'"
        for lab_line in "$@"; do echo "$lab_line"; done
    } >/tmp/more.cfg
    begun=$(free)
    check "create" xy create -q /tmp/more.cfg
    check "Linux runs" console_wait more 'XYLEM-GUEST: ready' $patience
    ours=$(life xy)
    check "save" xy save more /tmp/more.saved
    check "restore" xy restore /tmp/more.saved
    restored=$(life xy)
    check "it still runs" xy shutdown -w more
    echo "-- the same by xl"
    check "create" xl create -q /tmp/more.cfg
    check "Linux runs" console_wait more 'XYLEM-GUEST: ready' $patience
    xls=$(life xl)
    xl destroy more
    echo "MiB after the start, mem-set 128, 320, 160: ours $ours; restored $restored; xl's $xls"
    check "it gets what it is told" [ "$ours" = "160 128 320 160" ]
    check "as with xl" [ "$ours" = "$xls" ]
    check "restored, too" [ "$restored" = "$ours" ]
    check "nothing is left" wait_for "[ \$(free) -ge $((begun - 2)) ]" 20
}

words="quiet $FAST_BOOT console=hvc0"
[ "${1:-pvh}" = pvh ] && one pvh "extra = '$words'"
[ "${1:-hvm}" = hvm ] && one hvm "extra = '$words'" "vnc = 0"
exit 0
