# The demo in dom0: demo.bash xy|xl. Leaves /results/creates (one line "KIND MILLISECONDS" for each
# create) and, for xy, a report of each create in JSON.
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
    echo "$1 $((us / 1000)).$(printf '%03d' $((us % 1000)))" >>/results/creates
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
    linux_cfg "linux$i" "type = 'pv'" "memory = 128" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.ip=10.0.0.$((i + 10))'" \
        "disk = ['/tmp/disk$i.img,raw,xvda,w']" "vif = ['bridge=xenbr0']"
    create linux "linux$i"
done

echo
$tool list
[ "$tool" = xy ] || exit 0

echo
echo "console of linux1:"
console_wait linux1 'XYLEM-GUEST: ready' 240 || fail "linux1 does not come up"
grep XYLEM-GUEST "$(console_log linux1)" | tr -d '\r' | sed 's/^/    /'
echo "console of uni1:"
console_wait uni1 XYLEM-UNIKERNEL 30 || fail "uni1 says nothing"
grep XYLEM-UNIKERNEL "$(console_log uni1)" | tr -d '\r' | sed 's/^/    /'
for i in $(seq 2 $linux); do
    console_wait "linux$i" 'XYLEM-GUEST: ready' 240 || fail "linux$i does not come up"
done
for i in $(seq $unikernels); do
    console_wait "uni$i" XYLEM-UNIKERNEL 30 || fail "uni$i says nothing"
done

echo
clock
begin=$now
xy shutdown -a -w >/dev/null || fail "xy shutdown -a -w"
clock
echo "all $total shut down in $(((now - begin) / 1000)) ms; what is left:"
xy list

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
