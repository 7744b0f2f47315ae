# bench-suspend.bash ROUNDS OTHERS WHOLE: prints "SAMPLE NAME MICROSECONDS" lines: suspends by ours and in libxl's order, in
# turn, on the same guests (crates/xylemd/examples/suspend_rounds.rs, lab/xlsuspend.c), then WHOLE of them by `xy` and
# xylemd; then the same beside OTHERS further domains; then ROUNDS checkpoints of
# the Linux guest by ours and by libxc in libxl's order (crates/xylemd/examples/checkpoint_rounds.rs). All that on Xen's own
# store; at last ours takes it over, and the Linux guests are suspended once more (phases own-idle and own-loaded).
. /lab/lib.sh
rounds=$1
others=$2
whole=$3
export XLSUSPEND=/root/xlsuspend

# stop_xylemd: it would notice each suspend, and disturb whoever is measured.
stop_xylemd() {
    kill "$xylemd_pid"
    wait "$xylemd_pid" 2>/dev/null
}

uni() {
    local name=$1
    shift
    unikernel_cfg "$name" "$@"
    xy create -q "/tmp/$name.cfg" >/dev/null || fail "create $name"
    console_wait "$name" 'hello mode' 60 || fail "$name is not up"
}

# whole PHASE GUEST...: the operation as `xy trace` tells it, without the way to the daemon, and the command's own time.
whole() {
    local phase=$1 round name begin
    shift
    for round in $(seq "$whole"); do
        for name; do
            sleep 0.2
            begin=${EPOCHREALTIME/./}
            xy suspend "$name" || fail "suspend $name"
            echo "SAMPLE $name-command-$phase $((${EPOCHREALTIME/./} - begin))"
            xy trace "$name" | awk -v name="$name-whole-$phase" '/^operation .*suspend/ {
                value = $0
                sub(/.*\(/, "", value)
                split(value, part, /[ )]/)
                factor = part[2] == "s" ? 1000000 : part[2] == "ms" ? 1000 : 1
                print "SAMPLE", name, part[1] * factor
            }'
            xy resume "$name" || fail "resume $name"
        done
    done
}

start_xylemd
uni pv "type = 'pv'" "extra = 'xylem.quiet'"
uni pvh "type = 'pvh'" "extra = 'xylem.quiet'"
uni pv-store "type = 'pv'" "extra = 'xylem.quiet xylem.suspend=store'"
uni pvh-store "type = 'pvh'" "extra = 'xylem.quiet xylem.suspend=store'"
uni xen "type = 'pvh'" "extra = 'xylem.quiet xylem.suspend=xen'"
for kind in pv pvh; do
    linux_cfg "linux-$kind" "type = '$kind'" "memory = 128" "extra = 'console=hvc0 quiet $FAST_BOOT'"
    xy create -q "/tmp/linux-$kind.cfg" >/dev/null || fail "create linux-$kind"
done
for kind in pv pvh; do
    console_wait "linux-$kind" 'XYLEM-GUEST: ready' 600 || fail "linux-$kind is not up"
done
guests=
for guest in pv:AEO pvh:AEO pv-store:AO pvh-store:AO xen:O linux-pv:AO linux-pvh:AO; do
    guests="$guests $guest:$(xy domid "${guest%:*}")"
done
# The guests' own start is over.
sleep 5
stop_xylemd
# shellcheck disable=SC2086 # one word for each guest
/root/suspend_rounds "$rounds" idle,loaded $guests || fail "suspend_rounds"

start_xylemd
whole idle pv pvh linux-pv linux-pvh
for number in $(seq "$others"); do
    unikernel_cfg "other$number" "type = 'pv'" "extra = 'xylem.quiet'"
    xy create -q "/tmp/other$number.cfg" >/dev/null || fail "create other$number"
done
sleep 5
whole crowd pv pvh linux-pv linux-pvh
stop_xylemd
# shellcheck disable=SC2086 # one word for each guest
/root/suspend_rounds "$rounds" crowd $guests || fail "suspend_rounds beside $others"

# checkpoints ARM ROUNDS: of the Linux guest in PVH, ours (O) or libxc's in libxl's order (A).
domid=${guests##*:}
checkpoints() {
    case $1 in
        O) /root/checkpoint_rounds "$2" 500 "$domid" || fail "checkpoints by ours" ;;
        A)
            echo "save $domid $2 500" | $XLSUSPEND >/tmp/save || fail "checkpoints by libxc"
            grep -q end /tmp/save || fail "checkpoints by libxc: $(tail -n 1 /tmp/save)"
            awk 'NF == 2 { print "SAMPLE checkpoint-A-suspend", $1; print "SAMPLE checkpoint-A-pause", $2 }' /tmp/save
            ;;
    esac
}

# calls ARM: system calls of one thread during a pause, by name, on average of a few; of an ioctl its kind.
calls() {
    local trace=/results/pauses-$1
    local tracer="strace -f -qq -e raw=ioctl -o $trace"
    if [ "$1" = O ]; then
        XYLEM_MARK=1 $tracer /root/checkpoint_rounds 3 500 "$domid" >/dev/null
    else
        echo "save $domid 3 500" | XYLEM_MARK=1 $tracer "$XLSUSPEND" >/dev/null
    fi
    awk -v arm="$1" '
        $2 ~ /^getppid/ { inside = !inside; pauses += inside; next }
        !inside || $2 ~ /^[<+-]/ { next }
        {
            name = $2
            sub(/\(.*/, "", name)
            if (name == "ioctl") {
                name = $3 ~ /5000,$/ ? "hypercall" : $3 ~ /50[0-9a-f][0-9a-f],$/ ? "map" : $3 ~ /45[0-9a-f][0-9a-f],$/ ? "event" : "other"
                name = "ioctl:" name
            }
            count[name]++
        }
        END { for (name in count) print "SAMPLE calls-" arm "-" name, count[name] / pauses }' "$trace"
}

done=0
while [ $done -lt "$rounds" ]; do
    turn=$((rounds - done < 25 ? rounds - done : 25))
    checkpoints O $turn
    checkpoints A $turn
    done=$((done + turn))
done
calls O
calls A

# The samples so far are on Xen's own store. The other domains go, as they were not there in those phases either.
start_xylemd
for number in $(seq "$others"); do
    xy destroy "other$number" || fail "destroy other$number"
done
stop_xylemd
xenstore-control live-update /usr/local/bin/xylem-xenstored || fail "no live update to xylem-xenstored"
wait_for '[ -S /run/xenstored/socket ] && xenstore-read /local/domain/0/name' 60 || fail "xylem-xenstored does not serve"
sleep 5
linux=
for guest in linux-pv linux-pvh; do
    linux="$linux $(echo "$guests" | tr ' ' '\n' | grep "^$guest:")"
done
# shellcheck disable=SC2086 # one word for each guest
/root/suspend_rounds "$rounds" idle,loaded $linux >/tmp/own || fail "suspend_rounds on Xylem's store"
sed 's/-\(idle\|loaded\) /-own-\1 /' /tmp/own
