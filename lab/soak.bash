# soak.bash [SECONDS [SEED]]: several hands at once do random operations on VMs, disks, interfaces, CDs, definitions and
# VDIs, xl does its own beside them, somebody lists all the time, and xylemd and the store are killed now and then. What
# each hand does follows from the seed; how the hands meet does not.
#
# Every outcome is compared with a model: what ought to work works, what ought to be refused is, with one line that says
# why. Only if xylemd was killed meanwhile may an operation have any outcome; then the model learns what became of it.
# After each round, when nothing is under way, every VM must be as the model has it. After some, everything is taken down, and
# nothing may be left. The last third of the time has no kills: there the daemons must not grow.
. /lab/lib.sh
. /lab/storage.sh
. /lab/soak-vms.bash
. /lab/soak-others.bash
seconds=${1:-300}
seed=${2:-1}
folder=/tmp/soak
mkdir -p $folder /disks

if [ "$seconds" -ge 1200 ]; then round_seconds=120 rounds_each=5; else round_seconds=100 rounds_each=1; fi

# The counts of begun and ended kills of xylemd and of the store: an odd one says that somebody is at it.
echo 0 >$folder/kills-xylemd
echo 0 >$folder/kills-store

# launch_xylemd: a daemon that outlives whoever starts it; its number is in a file.
launch_xylemd() {
    setsid xylemd >>/results/xylemd.log 2>&1 </dev/null 8>&- &
    echo $! >$folder/xylemd.pid
    disown $!
    wait_for 'xy info xen_version' 60 || fail "xylemd does not answer: $(tail -n 3 /results/xylemd.log)"
}

# What there is, but for folders of the store that are empty while there is no VM, which each toolstack makes and removes as it
# likes.
state() { host_state | grep -v '^/\(xylem\|xylem/vm\|vm\|local/domain/0/backend\(/[a-z]*\)\?\) = ""'; }

# same_as_before: nothing is left that was not there. What a killed daemon emptied goes with the next VM's end.
same_as_before() {
    unikernel_cfg sweeper "type = 'pv'" "disk = ['/disks/sweeper.raw,raw,xvda,w']" "vif = ['bridge=xenbr0']" "extra = 'xylem.quiet'"
    xy create -q /tmp/sweeper.cfg && xy destroy sweeper || return 1
    wait_for 'state >/tmp/state.now; cmp -s /results/state.before /tmp/state.now' 30
    diff /results/state.before /tmp/state.now
}

# figures NAME: of both daemons, of the kernel and of Xen.
figures() {
    local line="$1:" pid name
    for name in xylemd store broker; do
        case $name in
            xylemd) pid=$(<$folder/xylemd.pid) ;;
            store) pid=$(store_pid) ;;
            broker) pid=$(pidof xylem-broker) ;;
        esac
        line="$line $name $(ls "/proc/$pid/fd" | wc -l) fds $(awk '/^VmRSS/ { print $2 }' "/proc/$pid/status") KiB"
        line="$line $(ls "/proc/$pid/task" | wc -l) threads;"
    done
    xl dmesg -c | grep 'Triple fault' >>$folder/svm-losses
    xl debug-keys e
    xl debug-keys g
    xl dmesg >"/results/xen-$1"
    line="$line dom0's event channels $(awk '/domain 0/ { on = 1 } /domain [1-9]/ { on = 0 } on && / s=[1-9]/ { n++ } END { print n + 0 }' "/results/xen-$1"),"
    line="$line interrupts $(grep -c xen-dyn /proc/interrupts);"
    line="$line grants $(grep -c '^(XEN) *\[0x[0-9a-f]*\] ' "/results/xen-$1");"
    line="$line nodes $(xenstore-ls -f / | wc -l); free $(xl info free_memory) MiB, dom0 $(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo) MiB"
    echo "$line" | tee -a /results/figures
}

# take_down: everything that the hands made.
take_down() {
    local vm
    for vm in $vms; do
        recall "$vm"
        if [ $life = up ]; then
            draw 2
            # A PVH guest that the emulated SVM loses in its shutdown would come again.
            [ "$vm" != u2 ] || drawn=0
            if [ $drawn = 0 ]; then operate destroy ok xy destroy "$vm"; else operate shutdown ok xy shutdown -w -w "$vm"; fi
            if [ $defined = 1 ]; then life=down; else life=none; fi
        fi
        if [ $defined = 1 ]; then operate undefine ok xy undefine "$vm"; fi
        life=none defined=0
        remember "$vm"
    done
    clear_vdis
}

# quiet: every VM is as the model has it.
quiet() {
    local vm loops=$base_loops
    for vm in $vms; do
        recall "$vm"
        if ! wait_for "as_described $vm" 90; then
            wrong "quiet-$vm" "the model has it $life, disks $disks, $vifs interfaces, CD '$cd'"
            look_again "$vm"
            remember "$vm"
        fi
        [ $life != up ] || loops=$((loops + $(count $disks) + $(count $cd)))
    done
    wait_for "[ \$(losetup -a | wc -l) = $loops ]" 20 || wrong quiet-loops "$loops were expected: $(losetup -a)"
    foreign_is_untouched || wrong quiet-foreign "$(xl list)"
    keeper_is_whole || wrong quiet-keeper "$(xy block-list keeper 2>&1; xy vdi-list s 2>&1)"
}

# play ROUND KILLS: the hands work until the round ends.
play() {
    until=$((SECONDS + round_seconds))
    local jobs=''
    hand 1 "$1" vm_hand u1 u2 &
    jobs="$jobs $!"
    hand 2 "$1" vm_hand u3 w1 &
    jobs="$jobs $!"
    hand 3 "$1" vm_hand l1 &
    jobs="$jobs $!"
    hand 4 "$1" vdi_hand &
    jobs="$jobs $!"
    hand 5 "$1" xl_hand &
    jobs="$jobs $!"
    hand 6 "$1" list_hand &
    jobs="$jobs $!"
    if [ "$2" = kills ]; then
        hand 7 "$1" kill_hand &
        jobs="$jobs $!"
    fi
    # shellcheck disable=SC2086 # one word for each
    wait $jobs
}

# hand NUMBER ROUND FUNCTION...: with a generator of its own.
hand() {
    worker=$1
    RANDOM=$(((seed * 7919 + $2 * 31 + $1) % 32768))
    shift 2
    until [ $SECONDS -ge "$until" ]; do "$@"; done
}

report() {
    echo
    awk '
        { n[$1]++; of[$1, $2]++; if ($3 > max[$1]) max[$1] = $3; sum[$1] += $3 }
        END {
            printf "%-16s %6s %6s %8s %6s %6s %9s %9s\n", "operation", "times", "ok", "refused", "cut", "wrong", "mean ms", "max ms"
            for (kind in n) {
                printf "%-16s %6d %6d %8d %6d %6d %9.0f %9d\n", kind, n[kind], of[kind, "ok"], of[kind, "refused"], of[kind, "cut"], of[kind, "wrong"], sum[kind] / n[kind], max[kind] | "sort"
            }
        }' /results/ops.*
    echo
    echo "messages of what was refused or cut off:"
    # Numbers, names and UUIDs make no other message.
    cat /results/ops.* | awk '$2 != "ok"' | cut -d ' ' -f 4- |
        sed 's/[0-9a-f]\{8\}-[0-9a-f-]\{27\}/UUID/g; s/\b[ulwt][0-9]\b/VM/g; s/xvd[a-z]/DISK/g; s/[0-9][0-9.]*/N/g' | sort | uniq -c | sort -rn
    echo
    local operations
    operations=$(cat /results/ops.* | wc -l)
    echo "$operations operations in $SECONDS s, $(($(<$folder/kills-xylemd) / 2)) kills of xylemd, $(($(<$folder/kills-store) / 2)) of the store, $(cat $folder/wrong 2>/dev/null | wc -l) wrong, $(svm_losses) guests lost by the emulated SVM"
}

worker=main
RANDOM=$seed
vms="u1 u2 u3 w1 l1"
launch_xylemd
prepare_vms
prepare_others
base_loops=$(losetup -a | wc -l)
# What is done once per boot is done.
truncate -s 1M /disks/sweeper.raw
xl_once
same_as_before >/dev/null 2>&1
state >/results/state.before
figures begin

# An emulated host may need minutes to come so far.
SECONDS=0
round=0
while [ $SECONDS -lt "$seconds" ]; do
    round=$((round + 1))
    with=kills
    if [ $((SECONDS * 3)) -gt $((seconds * 2)) ]; then with=none; fi
    play "$round" $with
    quiet
    echo "round $round, $SECONDS s: $(cat /results/ops.* | wc -l) operations, $(($(<$folder/kills-xylemd) / 2)) and $(($(<$folder/kills-store) / 2)) kills"
    # The first round after the last kill is where the growth is counted from.
    if [ $((round % rounds_each)) = 0 ] || [ $SECONDS -ge "$seconds" ] || { [ $with = none ] && [ ! -s $folder/steady ]; }; then
        take_down
        left=$(same_as_before) || wrong "left-$round" "$left"
        figures "round-$round"
        if [ $with = none ]; then tail -n 1 /results/figures >>$folder/steady; fi
    fi
done
report
echo "without kills, first and last:"
sed -n '1p;$p' $folder/steady
check "something was done, killed and left alone" [ "$(<$folder/kills-xylemd)" -gt 0 -a -s $folder/steady ]
check "nothing went wrong" [ ! -s $folder/wrong ]
check "nothing is left at the end" same_as_before
check "guests that were up saw no failed I/O" no_failed_io /var/log/xen/console/guest-*.log
