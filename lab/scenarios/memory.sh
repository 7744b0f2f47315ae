# lab-addition: hvm
# Memory of Linux guests that may have more than they begin with: what the balloon driver makes of it is what it makes of it
# when xl starts the guest, also after a save and a restore. For instance: lab run memory, or of one kind: memory pvh. HVM:
# lab run --mem 3072 --timeout 7200 memory hvm, with nothing beside it
. /lab/lib.sh
start_xylemd
mib() { xl list more | awk 'NR == 2 { print $3 }'; }
# told MIB: prints that if the guest has it in time, give or take a MiB, or else what it has then. Of an HVM guest's memory its
# screen's is a part, which the balloon driver leaves out.
told() {
    lab_mib=$(($1 - screen))
    if wait_for "[ \$(mib) -ge $((lab_mib - 1)) ] && [ \$(mib) -le $((lab_mib + 1)) ]" $((patience / 10)); then echo "$1"; else mib; fi
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
    # Emulated, an HVM guest waits for its device model most of the time, and sometimes QEMU has its processor fail (a triple
    # fault), and it starts anew.
    patience=600 screen=0
    [ "$kind" = hvm ] && patience=3000 screen=8
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
    : >"$(console_log more)"
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
# What has an HVM guest ask for devices that it has not got, or measure what is known.
quick="no_timer_check lpj=4000000 8250.nr_uarts=0 i8042.noaux i8042.nokbd pci=lastbus=0 iommu=off"
[ "${1:-pvh}" = pvh ] && one pvh "extra = '$words'"
[ "${1:-hvm}" = hvm ] && one hvm "extra = '$words $quick'" "vnc = 0"
exit 0
