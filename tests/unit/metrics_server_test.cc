#include "trireme/train/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/comm/socket.h"

namespace trireme::train {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

comm::Descriptor connection(int port) {
  comm::Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return client;
}

std::string ask(int port, const std::string& request) {
  const comm::Descriptor client = connection(port);
  EXPECT_EQ(::send(client.get(), request.data(), request.size(), 0), std::ssize(request));
  std::string answer;
  char buffer[256];
  for (ssize_t n; (n = ::recv(client.get(), buffer, sizeof buffer, 0)) > 0;)
    answer.append(buffer, static_cast<size_t>(n));
  return answer;
}

// A port that is free now.
int free_port() {
  const comm::Descriptor probe(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  socklen_t size = sizeof address;
  ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

TEST(MetricsServer, AnswersWithTheLatest) {
  const int port = free_port();
  MetricsServer server(port);
  server.publish("old 1\n");
  server.publish("trireme_step 7\n");
  const std::string answer = ask(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 15\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\ntrireme_step 7\n"));
  EXPECT_THAT(ask(port, "GET / HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 404"));
}

TEST(MetricsServer, ClientsThatSayNothingHoldNobodyUp) {
  const int port = free_port();
  MetricsServer server(port);
  const comm::Descriptor silent = connection(port);
  server.publish("a 1\n");
  EXPECT_THAT(ask(port, "GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr("a 1"));
}

TEST(MetricsServer, APortInUseIsRefused) {
  const int port = free_port();
  MetricsServer server(port);
  EXPECT_THAT([&] { MetricsServer second(port); },
              ::testing::ThrowsMessage<base::ConfigError>(HasSubstr("prometheus_port")));
}

}  // namespace
}  // namespace trireme::train
