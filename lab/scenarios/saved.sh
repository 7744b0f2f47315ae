# The state of suspended guests is read and loaded into new domains, in which they go on. `saved_domain` does both,
# without a toolstack: what it writes are streams of libxc, and Xen's verify-stream-v2 takes them. First
#   cargo build --profile trial -p xen-linux --example saved_domain
# and then with `--with target/trial/examples/saved_domain`.
. /lab/lib.sh
start_xylemd
tool=/root/saved_domain

# loaded NAME MEMORY VCPUS [FILE]: a domain of that name's file, called NAME-again.
loaded() {
    "$tool" load "${4:-/results/$1.stream}" "$1-again" "$2" "$3" >/tmp/load.out 2>&1 || { cat /tmp/load.out; return 1; }
}

# again: the domid of the domain that was loaded last.
again() { sed -n 's/^domid //p' /tmp/load.out; }

# captured NAME [ROUNDS]: into its file.
captured() { "$tool" capture "$(xy domid "$1")" "/results/$1.stream" $2 2>&1 | tee /tmp/capture.out; [ -s "/results/$1.stream" ]; }

echo "== unikernels"
for kind in pvh pv; do
    unikernel_cfg $kind "type = '$kind'"
    check "create $kind" xy create -q /tmp/$kind.cfg
    check "$kind is up" console_wait $kind 'hello mode' 60
    check "suspend" xy suspend $kind
    for round in 1 2 3; do
        check "read" captured $kind
        cat /tmp/capture.out
        check "resume" xy resume $kind
        check "suspend again" xy suspend $kind
    done
    check "read" captured $kind
    check "destroy" xy destroy $kind
    for round in 1 2; do
        check "load" loaded $kind 8 1
        cat /tmp/load.out
        check "it goes on elsewhere" console_wait $kind-again "resumed elsewhere domid=$(again)" 60
        xl destroy "$(again)"
    done
done

echo "== one that is read while it runs"
unikernel_cfg live "type = 'pvh'"
check "create" xy create -q /tmp/live.cfg
check "it is up" console_wait live 'hello mode' 60
captured live 3 &
reading=$!
check "rounds" wait_for 'grep -q "suspend it now" /tmp/capture.out' 60
check "suspend" xy suspend live
wait $reading
cat /tmp/capture.out
check "destroy" xy destroy live
check "load" loaded live 8 1
check "it goes on elsewhere" console_wait live-again "resumed elsewhere domid=$(again)" 60
xl destroy "$(again)"
unikernel_cfg nolog "type = 'pv'"
check "create" xy create -q /tmp/nolog.cfg
check "a PV domain cannot be read while it runs" refused_with 'does not log the writes of PV domains' "$tool" capture "$(xy domid nolog)" /tmp/nolog.stream 1
check "destroy" xy destroy nolog

echo "== with xl"
for kind in pvh pv; do
    unikernel_cfg $kind "type = '$kind'"
    check "create $kind" xy create -q /tmp/$kind.cfg
    check "$kind is up" console_wait $kind 'hello mode' 60
    check "suspend" xy suspend $kind
    check "read into a file of xl's" "$tool" capture "$(xy domid $kind)" /tmp/$kind.save
    check "destroy" xy destroy $kind
    unikernel_cfg $kind-xl "type = '$kind'" "vcpus = 1"
    check "xl restore" xl restore /tmp/$kind-xl.cfg /tmp/$kind.save
    check "it goes on elsewhere" console_wait $kind-xl "resumed elsewhere domid=$(xl domid $kind-xl)" 60
    check "xl save" xl save $kind-xl /tmp/xl-$kind.save
    check "load xl's" loaded xl-$kind 8 1 /tmp/xl-$kind.save
    check "it goes on elsewhere" console_wait xl-$kind-again "resumed elsewhere domid=$(again)" 60
    xl destroy "$(again)"
done

echo "== Linux"
for kind in pvh pv; do
    linux_cfg linux-$kind "type = '$kind'" "memory = 128" "vcpus = 2" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.tick=1'"
    check "create" xy create -q /tmp/linux-$kind.cfg
    check "it is up" console_wait linux-$kind 'XYLEM-GUEST: ready' 400
    check "suspend" xy suspend linux-$kind
    check "read" captured linux-$kind
    cat /tmp/capture.out
    check "destroy" xy destroy linux-$kind
    check "load" loaded linux-$kind 128 2
    cat /tmp/load.out
    check "time passes" console_wait linux-$kind-again 'tick=' 120
    xl destroy "$(again)"
done
