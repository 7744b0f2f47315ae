# lab-addition: hvm
# lab-addition: virtio-net
# The page before a real host: `cargo xtask views --lab` opens it by TLS in a browser outside, and destroys the VM the-end when it
# has seen enough.
. /lab/lib.sh
modprobe -a virtio_pci virtio_net
card=$(ls /sys/class/net | grep -v -e '^lo$' -e '^xenbr0$' | head -n 1)
check "a card on the way out" [ -n "$card" ]
ip addr add 10.0.2.15/24 dev "$card"
ip link set dev "$card" up

printf '%s\n' xylem:x:64001:web xylem-admin:x:64003:web >>/etc/group
echo "web:x:1240:1230::/tmp:/bin/sh" >>/etc/passwd
# The page's own trial names it.
mkdir -p /boot
ln -s /guest/unikernel /boot/vmlinuz
start_xylemd
for number in 0 1 2 3 4 5; do
    unikernel_cfg web-$number
    check "a VM web-$number" xy create -q /tmp/web-$number.cfg
done
unikernel_cfg the-end
check "a VM the-end" xy create -q /tmp/the-end.cfg
mkdir -p /srv/vdis
check "an SR" xy sr-create local file path=/srv/vdis
check "a VDI" xy vdi-create local:data 16M
linux_cfg web-linux "type = 'pv'" "memory = 160" "vif = ['bridge=xenbr0']" "disk = ['local:data,,xvda,w']" "vfb = ['vnc=1']" \
    "extra = 'console=hvc0 quiet $FAST_BOOT'"
check "a Linux VM with a disk, an interface and a screen" xy create -q /tmp/web-linux.cfg
check "Linux runs" console_wait web-linux 'XYLEM-GUEST: ready' 300

check "a client" sh -c "xylem-web client add-token page --role admin --clients /tmp/clients >/tmp/token"
mkdir -p /srv/web
chown web /tmp/clients /srv/web
su web -c "exec xylem-web --listen 10.0.2.15:8443 --certificate /srv/web/web.pem --key /srv/web/web.key --make-certificate \
    --clients /tmp/clients --print" >/tmp/web.out 2>/results/xylem-web.log </dev/null &
check "xylem-web serves" wait_for 'grep -q https /tmp/web.out' 60
[ -s /tmp/web.out ] || { cat /results/xylem-web.log; exit 1; }
echo "page: $(tail -n 1 /tmp/token) $(tr '\n' '|' </srv/web/web.pem)"
check "who looks at it has seen enough" wait_for '! xy domid the-end >/dev/null 2>&1' 3000
check "xylem-web is still there" pidof xylem-web
xy list
