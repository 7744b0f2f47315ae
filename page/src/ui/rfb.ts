import RFB from '@novnc/novnc';

/**
 * Encodings that noVNC shows by data: URLs, which the page's policy refuses: pictures (JPEG, Tight, Tight's PNG) and the
 * guest's own cursor, which is then part of the picture.
 */
const refused = new Set([21, 7, -260, -239, -314, 0x574d5664]);

const clientEncodings = RFB.messages.clientEncodings;
RFB.messages.clientEncodings = (socket, encodings) =>
  clientEncodings(
    socket,
    encodings.filter((it) => !refused.has(it)),
  );

export { RFB };
