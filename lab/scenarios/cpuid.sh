# lab-addition: hvm
# What a guest sees of the CPU is the same under xl and xy, leaf for leaf, for each kind of domain and for the keys
# that change it. Each domain is made paused, and Xen asked for its policy.
. /lab/lib.sh
modprobe tun
start_xylemd
xen-cpuid -p >/results/host

# policy TOOL NAME: of a domain made from /tmp/NAME.cfg.
policy() {
    "$1" create -q -p "/tmp/$2.cfg" </dev/null 2>"/results/$2.$1.create" || return
    xen-cpuid -p "$(xl domid "$2")" | grep -v '^Domain'
    xl destroy "$2"
    wait_for "! xl domid $2" 20
}

# compare NAME LINES...: a guest with these lines.
compare() {
    name=$1
    shift
    {
        echo "name = '$name'"
        echo "memory = 32"
        for line in "$@"; do echo "$line"; done
    } >"/tmp/$name.cfg"
    for tool in xl xy; do policy $tool "$name" >"/results/$name.$tool" 2>&1; done
    check "$name has a policy" grep -q '^ *00000001:' "/results/$name.xl"
    check "$name: $(grep -c -- '->' "/results/$name.xl") lines alike" \
        diff "/results/$name.xl" "/results/$name.xy"
}

pv="kernel = '/guest/unikernel'"
for vcpus in 1 3; do
    compare pv-$vcpus "$pv" "vcpus = $vcpus"
    compare pvh-$vcpus "$pv" "type = 'pvh'" "vcpus = $vcpus"
done
compare hvm "type = 'hvm'"
compare hvm-nested "type = 'hvm'" "nestedhvm = 1"
compare hvm-viridian "type = 'hvm'" "viridian = 1"
compare pvh-nested "$pv" "type = 'pvh'" "nestedhvm = 1"
for type in pv pvh; do
    compare $type-tsc "$pv" "type = '$type'" "tsc_mode = 'always_emulate'"
    compare $type-words "$pv" "type = '$type'" \
        "cpuid = 'host,sse4_2=0,popcnt=k,x2apic=x,family=6,model=0x3a,stepping=9,rdcl-no=0'"
    compare $type-leaves "$pv" "type = '$type'" \
        "cpuid = ['0x1:ecx=xxxxxxxxxxx00xxxxxxxxxxxxxxxxxxx', '7,0:ebx=xxxxxxxxxxxxxxxxxxxxxxxxxxxxx0xx']"
done
check "cpuid= changes something" sh -c "! cmp /results/pvh-1.xy /results/pvh-words.xy"
