# Trouble on a real Xen, and what others notice of it: a guest that never releases a device, a backend that never answers, an SR that
# hangs, domains that die while devices come. Each ends in bounded time with one clear line, nothing is left, and meanwhile
# another VM is made and destroyed, and lists are made, as fast as before.
. /lab/lib.sh
. /lab/storage.sh
start_xylemd
truncate -s 4M /disk-a.raw /disk-b.raw /disk-c.raw
unikernel_cfg other "type = 'pv'" "disk = ['/disk-c.raw,raw,xvda,w']" "extra = 'xylem.quiet'"

ms() { awk '{ print int($1 * 1000) }' /proc/uptime; }
# timed NAME COMMAND...: does it, and notes the milliseconds under that name.
timed() {
    timed_name=$1
    shift
    timed_begun=$(ms)
    "$@" >/tmp/timed.out 2>&1 || { check "$timed_name of a bystander" false; cat /tmp/timed.out; }
    echo "$timed_name $(($(ms) - timed_begun))" >>"$samples"
}
# bystander: what other VMs' owners do all the time.
bystander() {
    timed create xy create -q /tmp/other.cfg
    timed list xy list
    timed vm-list xy vm-list
    timed destroy xy destroy other
}
# slowest NAME FILE and typical NAME FILE, in milliseconds
slowest() { awk -v name="$1" '$1 == name && $2 > most { most = $2 } END { print most + 0 }' "$2"; }
typical() { awk -v name="$1" '$1 == name { print $2 }' "$2" | sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] + 0 }'; }

samples=/results/latency-quiet
for round in 1 2 3 4 5 6; do bystander; done

# trouble NAME SECONDS_MAX WORDS COMMAND...: the command fails, with one line that has the words, within so many seconds; a
# bystander's latency meanwhile is told beside that of quiet times. WORDS '-': it succeeds.
trouble() {
    name=$1 seconds_max=$2 words=$3
    shift 3
    samples=/results/latency-$name
    : >"$samples"
    begun=$(ms)
    { "$@" >/tmp/trouble.out 2>/tmp/trouble.err; echo $? >/tmp/trouble.status; } &
    job=$!
    while kill -0 $job 2>/dev/null; do bystander; done
    wait $job
    took=$(($(ms) - begun))
    status=$(cat /tmp/trouble.status)
    cat /tmp/trouble.err
    if [ "$words" = - ]; then
        check "$name: it succeeds" [ "$status" = 0 ]
    else
        check "$name: it fails" [ "$status" = 1 ]
        check "$name: one line says why" sh -c "[ \$(wc -l </tmp/trouble.err) = 1 ] && grep -q -- '$words' /tmp/trouble.err"
    fi
    check "$name: within $seconds_max s" [ $took -lt $((seconds_max * 1000)) ]
    for what in create list vm-list destroy; do
        usual=$(typical $what /results/latency-quiet)
        most=$(slowest $what "$samples")
        line="$line $what $(typical $what "$samples")/$most ($usual)"
        # An emulated host has hiccups of its own.
        check "$name: no $what of others waits for it" [ "$most" -lt $((usual * 4 + 3000)) ]
    done
    echo "FIGURE $name: $took ms; others meanwhile, median/slowest (in quiet times), ms:$line"
    line=''
}

bystander
host_state >/results/state.before
nothing_left() { check "$1: nothing is left" same_state /results/state.before; }
# state_of DOMID DEVID: of a disk's backend.
connected() { wait_for "[ \"\$(xenstore-read /local/domain/0/backend/vbd/$1/$2/state)\" = 4 ]" 60; }

echo "== a guest never closes its frontend"
unikernel_cfg holder "type = 'pv'" "extra = 'xylem.quiet xylem.hold'" "disk = ['/disk-a.raw,raw,xvda,w']"
check "create" xy create -q /tmp/holder.cfg
check "its disk is connected" connected "$(xy domid holder)" 51712
trouble detach-held 45 'did not release .* within 30 s' xy block-detach holder xvda
check "the disk is still there" [ "$(xy block-list holder | wc -l)" = 2 ]
trouble destroy-held 20 - xy destroy holder
nothing_left hold

echo "== a backend never answers"
unikernel_cfg plain "type = 'pv'" "extra = 'xylem.quiet'"
check "create" xy create -q /tmp/plain.cfg
# dom0's driver is unloaded: new devices are not probed.
modprobe -r xen-blkback 2>/tmp/rmmod.err || rmmod xen_blkback 2>>/tmp/rmmod.err
if grep -q '^xen_blkback' /proc/modules; then
    check "xen-blkback can be taken away" false
    cat /tmp/rmmod.err
else
    sed -i 's/^disk = .*//' /tmp/other.cfg
    trouble attach-unanswered 75 'backend' xy block-attach plain /disk-a.raw raw xvda w
    unikernel_cfg mute "type = 'pv'" "extra = 'xylem.quiet'" "disk = ['/disk-b.raw,raw,xvda,w']"
    trouble create-unanswered 75 'backend' xy create -q /tmp/mute.cfg
    modprobe xen-blkback
    check "with the driver, it attaches" xy block-attach plain /disk-a.raw raw xvda w
    check "and is connected" connected "$(xy domid plain)" 51712
    sed -i '$a disk = ["/disk-c.raw,raw,xvda,w"]' /tmp/other.cfg
fi
check "destroy" xy destroy plain
nothing_left backend

echo "== an SR hangs"
cp /lab/storage-driver.sh /root/driver
chmod 755 /root/driver
check "sr-create" xy sr-create slow program program=/root/driver folder=/srv/slow
for vdi in one two; do check "vdi-create $vdi" xy vdi-create slow:$vdi 4M; done
bystander
unikernel_cfg slow1 "type = 'pv'" "extra = 'xylem.quiet'" "disk = ['slow:one,,xvda,w']"
check "create" xy create -q /tmp/plain.cfg
host_state >/results/state.sr
touch /tmp/driver.hang
trouble create-hung 150 'slow: .*no answer within 60 s' xy create -q /tmp/slow1.cfg
trouble attach-hung 150 'slow: .*no answer within 60 s' xy block-attach plain slow:two,,xvda,w
rm /tmp/driver.hang
check "it answers again" wait_for 'xy vdi-list slow' 90
check "nothing of these is left" same_state /results/state.sr
check "a create works again" xy create -q /tmp/slow1.cfg
check "destroy slow1" xy destroy slow1
check "destroy plain" xy destroy plain
for vdi in one two; do check "vdi-destroy $vdi" xy vdi-destroy slow:$vdi; done
check "sr-destroy" xy sr-destroy slow
nothing_left sr

echo "== the domain dies while devices come"
# plug_and SECONDS COMMAND...: three attaches, and after so long what ends the domain; all of it ends.
plug_and() {
    delay=$1
    shift
    jobs=
    for pair in a:xvda b:xvdb; do
        xy block-attach victim /disk-${pair%:*}.raw raw ${pair#*:} w >>/results/dying.log 2>&1 &
        jobs="$jobs $!"
    done
    xy network-attach victim bridge=xenbr0 >>/results/dying.log 2>&1 &
    jobs="$jobs $!"
    sleep "$delay"
    "$@" >>/results/dying.log 2>&1
    for one in $jobs; do wait "$one"; done
    wait_for '! xy domid victim' 60
}
unikernel_cfg victim "type = 'pv'" "extra = 'xylem.quiet'"
for delay in 0 0.1 0.4; do
    check "create" xy create -q /tmp/victim.cfg
    domid=$(xy domid victim)
    trouble "crashes-after-$delay" 60 - plug_and $delay xenstore-write "/local/domain/$domid/control/shutdown" crash
    nothing_left "crash after $delay s"
    check "create" xy create -q /tmp/victim.cfg
    trouble "destroyed-by-xl-after-$delay" 60 - plug_and $delay xl destroy victim
    nothing_left "destroyed by xl after $delay s"
done
sort /results/dying.log | sed 's/[0-9][0-9]*/N/g' | uniq -c
