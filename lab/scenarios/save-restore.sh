# Guests of every kind are saved to files and go on where they were; what cannot be is refused and changes nothing; whatever
# happens to the daemon, a VM runs, or is whole in its file.
. /lab/lib.sh
start_xylemd
host_state >/results/state.before
state() { xl list "$1" | awk 'NR == 2 { print $5 }'; }
said() { [ "$(grep -c -- "$2" "$(console_log "$1")")" -ge "$3" ]; }
gone() { ! xl list "$1" >/dev/null 2>&1; }
mkdir -p /saved
unfinished() { ls -A /saved | grep -q unfinished; }

echo "== unikernels"
for kind in pvh pv; do
    unikernel_cfg $kind "type = '$kind'"
    check "create $kind" xy create -q /tmp/$kind.cfg
    check "$kind is up" console_wait $kind 'hello mode' 60
    for round in 1 2; do
        start=$(now)
        check "save" xy save $kind /saved/$kind
        echo "saved in $(seconds_since "$start") s: $(ls -l /saved/$kind | awk '{ print $1, $5 }')"
        xy trace $kind
        check "it is gone" gone $kind
        check "dom0 is as before" same_state /results/state.before
        start=$(now)
        check "restore" xy restore /saved/$kind
        echo "restored in $(seconds_since "$start") s"
        check "it goes on in another domain" wait_for "said $kind 'resumed elsewhere' $round" 60
        xy trace $kind
    done
    check "save -c" xy save -c $kind /saved/$kind.copy
    check "it goes on here" wait_for "said $kind 'resumed here' 1" 60
    check "save -p" xy save -p $kind /saved/$kind.paused
    check "it is paused" [ "$(state $kind)" = --p--- ]
    xy unpause $kind
    check "it goes on here again" wait_for "said $kind 'resumed here' 2" 60
    check "its name is taken" refused_with 'exists already' xy restore /saved/$kind.copy
    check "it obeys" xy shutdown -w $kind
    for copy in copy paused; do
        check "restore the $copy" xy restore /saved/$kind.$copy
        check "it goes on" wait_for "said $kind 'resumed elsewhere' 1" 60
        check "shutdown" xy shutdown -w $kind
    done
done
check "nothing unfinished" eval '! unfinished'
check "dom0 is as before" same_state /results/state.before

echo "== what is refused"
check "no such domain" refused_with 'no such domain' xy save none /saved/none
check "no such file" refused_with 'no such file' xy restore /saved/none
check "not one" refused_with 'not the file of a saved VM' xy restore /lab/lib.sh
head -c $(($(wc -c </saved/pvh) / 2)) /saved/pvh >/saved/cut
check "one that was cut off" refused_with 'damaged or incomplete' xy restore /saved/cut
cp /saved/pvh /saved/damaged
printf 'xylem' | dd of=/saved/damaged bs=1 seek=20000 conv=notrunc 2>/dev/null
check "one that is damaged" refused_with 'damaged' xy restore /saved/damaged
check "nothing is left of it" same_state /results/state.before
check "restore" xy restore /saved/pvh
xy pause pvh
check "a paused one" refused_with 'is paused' xy save pvh /saved/x
xy unpause pvh
check "into a folder" refused_with 'is a directory' xy save pvh /saved
check "into no folder" refused_with 'no such file' xy save pvh /nowhere/x
mkdir -p /small && mount -t tmpfs -o size=32k none /small
check "a full disk" refused_with '/small/x: no space left on the disk' xy save pvh /small/x
check "it leaves nothing" [ -z "$(ls -A /small)" ]
check "it runs on" eval '[ "$(state pvh)" != ---ss- ]'
check "a full disk with -c" refused_with 'no space left' xy save -c pvh /small/x
check "it leaves nothing" [ -z "$(ls -A /small)" ]
check "it obeys" xy shutdown -w pvh
umount /small

echo "== xl"
for kind in pvh pv; do
    unikernel_cfg x$kind "type = '$kind'"
    check "create $kind" xy create -q /tmp/x$kind.cfg
    check "it is up" console_wait x$kind 'hello mode' 60
    check "we save it for xl" xy save --format xl x$kind /saved/xl
    check "it is gone" gone x$kind
    check "xl restores it" xl restore /saved/xl
    check "it goes on" wait_for "said x$kind 'resumed elsewhere' 1" 60
    check "xl saves it" xl save x$kind /saved/xl
    check "it is gone" gone x$kind
    check "we restore it" xy restore /saved/xl
    check "it goes on" wait_for "said x$kind 'resumed elsewhere' 2" 60
    check "it obeys" xy shutdown -w x$kind
done
check "dom0 is as before" same_state /results/state.before

echo "== Linux"
cp /guest/disk.img /disk.img
for kind in pvh pv; do
    name=linux-$kind
    linux_cfg $name "type = '$kind'" "tsc_mode = 'native'" "memory = 128" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.ip=10.0.0.5 xylem.io=1 xylem.tick=1'" "disk = ['/disk.img,raw,xvda,w']" "vif = ['bridge=xenbr0']"
    check "create" xy create -q /tmp/$name.cfg
    check "it is up" console_wait $name 'XYLEM-GUEST: ready' 400
    for how in '' -c; do
        ticks=$(grep -o 'tick=[0-9]*' "$(console_log $name)" | tail -1 | cut -d = -f 2)
        start=$(now)
        check "save $how" xy save $how $name /saved/linux
        echo "saved in $(seconds_since "$start") s: $(ls -l /saved/linux | awk '{ print $5 }')"
        xy trace $name
        if [ -z "$how" ]; then
            check "it is gone" gone $name
            check "dom0 is as before" same_state /results/state.before
            start=$(now)
            check "restore" xy restore /saved/linux
            echo "restored in $(seconds_since "$start") s"
        fi
        check "it counts on" wait_for "[ \$(grep -o 'tick=[0-9]*' $(console_log $name) | tail -1 | cut -d = -f 2) -gt $((ticks + 2)) ]" 60
        check "it answers" wait_for 'ping -c 1 -W 2 10.0.0.5' 60
        check "nothing that it read was wrong" no_failed_io "$(console_log $name)"
    done
    check "it obeys" xy shutdown -w $name
    check "dom0 is as before" same_state /results/state.before
done

echo "== a daemon that is killed while it saves"
linux_cfg killed "type = 'pvh'" "tsc_mode = 'native'" "memory = 256" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.tick=1'"
check "create" xy create -q /tmp/killed.cfg
check "it is up" console_wait killed 'XYLEM-GUEST: ready' 400
rm -f /saved/linux
for delay in 0.2 0.7 1.2; do
    xy save killed /saved/linux >/dev/null 2>&1 &
    saving=$!
    sleep $delay
    kill_xylemd
    wait $saving
    start_xylemd
    wait_for "! xy explain killed 2>/dev/null | grep -q settle" 30
    if [ -e /saved/linux ]; then
        check "it is in its file" wait_for "gone killed" 30
        check "restore" xy restore /saved/linux
        rm -f /saved/linux
    fi
    ticks=$(grep -o 'tick=[0-9]*' "$(console_log killed)" | tail -1 | cut -d = -f 2)
    check "it counts on" wait_for "[ \$(grep -o 'tick=[0-9]*' $(console_log killed) | tail -1 | cut -d = -f 2) -gt $((ticks + 1)) ]" 60
    check "nothing unfinished" eval '! unfinished'
done
check "a client that hangs up cancels" eval 'xy save killed /saved/linux & sleep 0.5; kill $!; wait_for "! unfinished" 10 && [ ! -e /saved/linux ]'
check "it obeys" xy shutdown -w killed
check "dom0 is as before" same_state /results/state.before
