// The part of noVNC that the page uses.
declare module '@novnc/novnc' {
  interface Messages {
    clientEncodings: (socket: unknown, encodings: number[]) => void;
  }
  export default class RFB extends EventTarget {
    static messages: Messages;
    constructor(target: HTMLElement, urlOrChannel: string | WebSocket, options?: { wsProtocols?: string[]; credentials?: { password: string } });
    scaleViewport: boolean;
    viewOnly: boolean;
    focusOnClick: boolean;
    background: string;
    disconnect(): void;
    focus(): void;
    sendCtrlAltDel(): void;
    sendCredentials(credentials: { password: string }): void;
  }
}
