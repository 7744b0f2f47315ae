# Memory of a PVH Linux guest that may have more than it begins with: what its balloon driver makes of it is what it
# makes of it when xl starts it, also after a save and a restore.
. /lab/lib.sh
start_xylemd
cat >/tmp/more.cfg <<END
name = 'more'
type = 'pvh'
memory = 160
maxmem = 448
kernel = '/guest/vmlinuz'
ramdisk = '/guest/initramfs'
extra = 'quiet $FAST_BOOT console=hvc0'
END
mib() { xl list more | awk 'NR == 2 { print $3 }'; }
# told MIB: prints that if the guest has it within a minute, give or take a MiB, or else what it has then.
told() {
    if wait_for "[ \$(mib) -ge $(($1 - 1)) ] && [ \$(mib) -le $(($1 + 1)) ]" 60; then echo "$1"; else mib; fi
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
free=$(xl info | awk '/^free_memory/ { print $3 }')

check "create" xy create -q /tmp/more.cfg
check "Linux runs" console_wait more 'XYLEM-GUEST: ready' 300
ours=$(life xy)
echo "-- save and restore"
check "save" xy save more /tmp/more.saved
check "restore" xy restore /tmp/more.saved
restored=$(life xy)
check "it still runs" xy shutdown -w more
xy list

echo "-- the same by xl"
check "create" xl create -q /tmp/more.cfg
check "Linux runs" console_wait more 'XYLEM-GUEST: ready' 300
xls=$(life xl)
check "save" xl save more /tmp/xl.saved
check "restore" xl restore /tmp/xl.saved
xls_restored=$(life xl)
xl destroy more
echo "MiB after the start, mem-set 128, 320, 160: ours $ours; restored $restored; xl's $xls; restored $xls_restored"
check "it gets what it is told" [ "$ours" = "160 128 320 160" ]
check "as with xl" [ "$ours" = "$xls" ]
check "restored, too" [ "$restored" = "$xls_restored" ]

echo "-- afterwards"
check "nothing is left" wait_for "[ \$(xl info | awk '/^free_memory/ { print \$3 }') -ge $((free - 2)) ]" 20
