# 20 VMs by Xylem: made, listed, looked into, shut down.
exec bash /lab/demo.bash xy
