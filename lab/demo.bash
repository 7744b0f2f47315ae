# The demo in dom0: demo.bash xy|xl. Leaves /results/times (a line "WHAT MILLISECONDS" for each create, of a
# unikernel or a Linux guest, and for a save and a restore) and, for xy, a report of each create in JSON.
. /lab/lib.sh
tool=$1
linux=3
unikernels=17
total=$((linux + unikernels))

# The clock without a fork: microseconds.
clock() { now=${EPOCHREALTIME/./}; }

# progress DONE NAME
progress() {
    local filled=$(($1 * 30 / total)) bar=
    while [ ${#bar} -lt $filled ]; do bar=$bar#; done
    printf '[%-30s] %2d/%d  %s\n' "$bar" "$1" $total "$2"
}

# timed WHAT COMMAND...: a line of /results/times.
timed() {
    local what=$1
    shift
    clock
    local begin=$now
    "$@" >/dev/null 2>>/results/errors || fail "$*"
    clock
    local us=$((now - begin))
    echo "$what $((us / 1000)).$(printf '%03d' $((us % 1000)))" >>/results/times
    echo "    $what: $((us / 1000)) ms"
}

# counted NAME: how far the guest has counted; it would begin anew if it had booted again.
counted() { grep -o 'tick=[0-9]*' "$(console_log "$1")" | tail -n 1 | cut -d = -f 2; }

# leaves_and_comes_back NAME: a guest is saved to a file and goes on from it.
leaves_and_comes_back() {
    echo
    echo "$1 is saved to a file, and restored from it:"
    console_wait "$1" 'tick=2' 240 || fail "$1 does not count"
    timed save "$tool" save "$1" "/tmp/$1.saved"
    echo "    its file: $(($(stat -c %s "/tmp/$1.saved") / 1000000)) MB of 128 MiB"
    local before=$(counted "$1")
    timed restore "$tool" restore "/tmp/$1.saved"
    wait_for "[ \"\$(counted $1)\" -gt $before ]" 60 || fail "$1 does not go on"
    echo "    it went on where it was: it had counted to $before, and says $(counted "$1")"
    rm "/tmp/$1.saved"
}

# checkpoint_storm ROUNDS: so many checkpoints of each unikernel, all unikernels at once, while they run.
checkpoint_storm() {
    local round i last count=$(($1 * unikernels))
    echo
    echo "a checkpoint storm: $count checkpoints of the $unikernels unikernels, which go on running"
    last=$(xy trace | awk 'END { print $1 }')
    clock
    local begin=$now
    for round in $(seq "$1"); do
        # The daemon is a child of this shell as well.
        local taking=()
        for i in $(seq $unikernels); do
            xy checkpoint "uni$i" "round$round" >/dev/null 2>>/results/errors &
            taking+=($!)
        done
        wait "${taking[@]}"
    done
    clock
    [ "$(xy checkpoint-list | grep -c round)" = $count ] || fail "not all checkpoints are there"
    echo "$count checkpoints in $(((now - begin) / 1000)) ms; where the time of one went:"
    xy trace uni1
    for i in $(seq $unikernels); do
        wait_for "[ \$(grep -c 'resumed here' $(console_log "uni$i")) = $1 ]" 30 || fail "uni$i did not go on $1 times"
    done
    echo "each guest has gone on $1 times. Those of uni1 and uni2:"
    xy checkpoint-list | grep -E '^(VM|uni[12]) '
    clock
    begin=$now
    xy clone uni1:round1 --count 5 >/dev/null || fail "xy clone uni1:round1"
    clock
    echo "5 copies of uni1 as it was at the first, made and running in $(((now - begin) / 1000)) ms:"
    xy list | grep -E '^uni1-'
    for i in $(seq $unikernels); do
        xy checkpoint-destroy "uni$i" $(seq "$1" | sed 's/^/round/') || fail "xy checkpoint-destroy uni$i"
    done
}

# create KIND NAME
create() {
    clock
    local begin=$now
    if [ "$tool" = xy ]; then
        xy create -q --json "/tmp/$2.cfg" >"/results/create-$1-$2.json" || fail "xy create $2"
    else
        xl create -q "/tmp/$2.cfg" >/dev/null || fail "xl create $2"
    fi
    clock
    local us=$((now - begin))
    echo "$1 $((us / 1000)).$(printf '%03d' $((us % 1000)))" >>/results/times
    done=$((done + 1))
    progress $done "$2 in $((us / 1000)) ms"
}

[ "$tool" = xl ] || start_xylemd
done=0
# The small ones first: Linux guests that boot take CPUs from whoever comes after them.
for i in $(seq $unikernels); do
    # Every second one is PVH.
    type=pv
    [ $((i % 2)) = 1 ] || type=pvh
    unikernel_cfg "uni$i" "type = '$type'"
    # xl 4.17 counts too little memory for the page tables of so small a PVH domain.
    [ "$tool-$type" != xl-pvh ] || echo "shadow_memory = 4" >>"/tmp/uni$i.cfg"
    create unikernel "uni$i"
done
for i in $(seq $linux); do
    cp /guest/disk.img "/tmp/disk$i.img"
    linux_cfg "linux$i" "type = 'pv'" "memory = 128" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.ip=10.0.0.$((i + 10)) xylem.tick=1'" \
        "disk = ['/tmp/disk$i.img,raw,xvda,w']" "vif = ['bridge=xenbr0']"
    create linux "linux$i"
done

echo
$tool list
for i in $(seq $linux); do
    console_wait "linux$i" 'XYLEM-GUEST: ready' 600 || fail "linux$i does not come up"
done
leaves_and_comes_back linux1
[ "$tool" = xy ] || exit 0

echo
echo "console of linux1:"
grep XYLEM-GUEST "$(console_log linux1)" | grep -v tick= | tr -d '\r' | sed 's/^/    /'
echo "console of uni1:"
console_wait uni1 XYLEM-UNIKERNEL 30 || fail "uni1 says nothing"
grep XYLEM-UNIKERNEL "$(console_log uni1)" | tr -d '\r' | sed 's/^/    /'
for i in $(seq $unikernels); do
    console_wait "uni$i" XYLEM-UNIKERNEL 30 || fail "uni$i says nothing"
done
checkpoint_storm 3
total=$((total + 5))

echo
clock
begin=$now
xy shutdown -a -w >/dev/null || fail "xy shutdown -a -w"
clock
echo "all $total shut down in $(((now - begin) / 1000)) ms; what is left:"
xy list
total=$((linux + unikernels))

echo
echo "a boot storm: $total unikernels with two disks each are defined, and started at once"
last=$(xy trace | awk 'END { print $1 }')
for i in $(seq $total); do
    truncate -s 1M "/tmp/storm$i-a.raw" "/tmp/storm$i-b.raw"
    unikernel_cfg "storm$i" "type = 'pv'" "disk = ['/tmp/storm$i-a.raw,raw,xvda,w', '/tmp/storm$i-b.raw,raw,xvdb,w']"
    xy define "/tmp/storm$i.cfg" >/dev/null || fail "xy define storm$i"
done
clock
begin=$now
xy start --all || fail "xy start --all"
clock
echo "$total started in $(((now - begin) / 1000)) ms; where the time went (xy trace --all):"
xy trace --all --since "$last" start || fail "xy trace --all"
xy trace --all --since "$last" --svg start >/results/bootstorm.svg || fail "xy trace --all --svg"
xy shutdown -a -w -w >/dev/null || fail "xy shutdown -a -w -w"
for i in $(seq $total); do xy undefine "storm$i" || fail "xy undefine storm$i"; done
echo "all $total shut down and undefined"
